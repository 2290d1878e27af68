"""What is written down, and how. Modules are imported when a name of theirs is used."""

from typing import TYPE_CHECKING

from shardkeep._lazy import lazy_exports

if TYPE_CHECKING:
    from shardkeep.manifest.codec import (
        VERSION as VERSION,
        decode_manifest as decode_manifest,
        encode_manifest as encode_manifest,
    )
    from shardkeep.manifest.digests import Digests as Digests, header_digest as header_digest
    from shardkeep.manifest.dtypes import (
        DTYPES as DTYPES,
        itemsize as itemsize,
        storage_entry as storage_entry,
        tensor_nbytes as tensor_nbytes,
    )
    from shardkeep.manifest.entries import StoredEntry as StoredEntry
    from shardkeep.manifest.files import FileRecord as FileRecord, FileTable as FileTable
    from shardkeep.manifest.grids import (
        BoxGrid as BoxGrid,
        Chunk as Chunk,
        ChunkGrid as ChunkGrid,
        SplitGrid as SplitGrid,
    )
    from shardkeep.manifest.header import (
        Header as Header,
        decode_header as decode_header,
        decode_listed_header as decode_listed_header,
        header_length as header_length,
    )
    from shardkeep.manifest.header_plan import (
        EntrySpec as EntrySpec,
        EntryTable as EntryTable,
        HeaderPlan as HeaderPlan,
        encode_entries as encode_entries,
        plan_header as plan_header,
    )
    from shardkeep.manifest.model import (
        NO_GRID as NO_GRID,
        Manifest as Manifest,
        TensorRecord as TensorRecord,
    )
    from shardkeep.manifest.names import (
        MANIFEST_NAME as MANIFEST_NAME,
        ChunkNamer as ChunkNamer,
        DataFile as DataFile,
        chunk_name as chunk_name,
        chunk_names as chunk_names,
        file_name as file_name,
        lock_name as lock_name,
        new_save_id as new_save_id,
        parse_chunk_name as parse_chunk_name,
        parse_file_name as parse_file_name,
        parse_lock_name as parse_lock_name,
        parse_report_name as parse_report_name,
        report_name as report_name,
    )
    from shardkeep.manifest.nodes import (
        SPARSE_PARTS as SPARSE_PARTS,
        ArrayNode as ArrayNode,
        DictNode as DictNode,
        ListNode as ListNode,
        Node as Node,
        PerRankNode as PerRankNode,
        SparseNode as SparseNode,
        TensorNode as TensorNode,
        TupleNode as TupleNode,
        ValueNode as ValueNode,
    )
    from shardkeep.manifest.plain_json import Json as Json, check_json as check_json
    from shardkeep.manifest.registry import register_value as register_value
    from shardkeep.manifest.runs import (
        Runs as Runs,
        decode_runs as decode_runs,
        encode_runs as encode_runs,
    )
    from shardkeep.manifest.summary import Summary as Summary, decode_summary as decode_summary
    from shardkeep.manifest.tree_codec import decode_tree as decode_tree, encode_tree as encode_tree
    from shardkeep.manifest.values import decode_value as decode_value, encode_value as encode_value
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "ArrayNode": "shardkeep.manifest.nodes",
            "BoxGrid": "shardkeep.manifest.grids",
            "Chunk": "shardkeep.manifest.grids",
            "ChunkGrid": "shardkeep.manifest.grids",
            "ChunkNamer": "shardkeep.manifest.names",
            "DTYPES": "shardkeep.manifest.dtypes",
            "DataFile": "shardkeep.manifest.names",
            "DictNode": "shardkeep.manifest.nodes",
            "Digests": "shardkeep.manifest.digests",
            "EntrySpec": "shardkeep.manifest.header_plan",
            "EntryTable": "shardkeep.manifest.header_plan",
            "FileRecord": "shardkeep.manifest.files",
            "FileTable": "shardkeep.manifest.files",
            "Header": "shardkeep.manifest.header",
            "HeaderPlan": "shardkeep.manifest.header_plan",
            "Json": "shardkeep.manifest.plain_json",
            "ListNode": "shardkeep.manifest.nodes",
            "MANIFEST_NAME": "shardkeep.manifest.names",
            "Manifest": "shardkeep.manifest.model",
            "NO_GRID": "shardkeep.manifest.model",
            "Node": "shardkeep.manifest.nodes",
            "PerRankNode": "shardkeep.manifest.nodes",
            "Runs": "shardkeep.manifest.runs",
            "SPARSE_PARTS": "shardkeep.manifest.nodes",
            "SparseNode": "shardkeep.manifest.nodes",
            "SplitGrid": "shardkeep.manifest.grids",
            "StoredEntry": "shardkeep.manifest.entries",
            "Summary": "shardkeep.manifest.summary",
            "TensorNode": "shardkeep.manifest.nodes",
            "TensorRecord": "shardkeep.manifest.model",
            "TupleNode": "shardkeep.manifest.nodes",
            "VERSION": "shardkeep.manifest.codec",
            "ValueNode": "shardkeep.manifest.nodes",
            "check_json": "shardkeep.manifest.plain_json",
            "chunk_name": "shardkeep.manifest.names",
            "chunk_names": "shardkeep.manifest.names",
            "decode_header": "shardkeep.manifest.header",
            "decode_listed_header": "shardkeep.manifest.header",
            "decode_manifest": "shardkeep.manifest.codec",
            "decode_runs": "shardkeep.manifest.runs",
            "decode_summary": "shardkeep.manifest.summary",
            "decode_tree": "shardkeep.manifest.tree_codec",
            "decode_value": "shardkeep.manifest.values",
            "encode_entries": "shardkeep.manifest.header_plan",
            "encode_manifest": "shardkeep.manifest.codec",
            "encode_runs": "shardkeep.manifest.runs",
            "encode_tree": "shardkeep.manifest.tree_codec",
            "encode_value": "shardkeep.manifest.values",
            "file_name": "shardkeep.manifest.names",
            "header_digest": "shardkeep.manifest.digests",
            "header_length": "shardkeep.manifest.header",
            "itemsize": "shardkeep.manifest.dtypes",
            "lock_name": "shardkeep.manifest.names",
            "new_save_id": "shardkeep.manifest.names",
            "parse_chunk_name": "shardkeep.manifest.names",
            "parse_file_name": "shardkeep.manifest.names",
            "parse_lock_name": "shardkeep.manifest.names",
            "parse_report_name": "shardkeep.manifest.names",
            "plan_header": "shardkeep.manifest.header_plan",
            "register_value": "shardkeep.manifest.registry",
            "report_name": "shardkeep.manifest.names",
            "storage_entry": "shardkeep.manifest.dtypes",
            "tensor_nbytes": "shardkeep.manifest.dtypes",
        },
    )

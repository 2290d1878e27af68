"""Which names does shardkeep offer? Each is imported when it is first used."""

from typing import TYPE_CHECKING

from shardkeep._lazy import lazy_exports

__version__ = "0.1.0.dev0"

# Two lists of the same names: the type checker reads the first, the interpreter the second.
if TYPE_CHECKING:
    from shardkeep import sharded as sharded
    from shardkeep.boxes import (
        Box as Box,
        ByteRanges as ByteRanges,
        Grid as Grid,
        TilingReport as TilingReport,
        byte_ranges as byte_ranges,
        check_tiling as check_tiling,
    )
    from shardkeep.checkpoint import (
        explain as explain,
        explain_save as explain_save,
        load as load,
        open as open,
        prepare_async as prepare_async,
        prune as prune,
        register_value_type as register_value_type,
        save as save,
        save_async as save_async,
    )
    from shardkeep.checkpointer import Checkpointer as Checkpointer
    from shardkeep.errors import (
        CompanionMismatch as CompanionMismatch,
        ConflictError as ConflictError,
        CorruptError as CorruptError,
        CoverError as CoverError,
        DeadlineError as DeadlineError,
        InvalidError as InvalidError,
        LayoutError as LayoutError,
        NotFoundError as NotFoundError,
        RankFailedError as RankFailedError,
        RankInputError as RankInputError,
        RanksDisagreeError as RanksDisagreeError,
        ShardkeepError as ShardkeepError,
        StorageError as StorageError,
        UnsupportedError as UnsupportedError,
        VersionError as VersionError,
    )
    from shardkeep.interchange import (
        export_checkpoint as export_checkpoint,
        import_checkpoint as import_checkpoint,
    )
    from shardkeep.layouts import (
        Layout as Layout,
        Mesh as Mesh,
        Replicate as Replicate,
        Split as Split,
    )
    from shardkeep.sharded.factories import (
        init_from_local_shards as init_from_local_shards,
    )
    from shardkeep.sharded.functions import (
        custom_sharded_op_impl as custom_sharded_op_impl,
        custom_sharding_spec_op as custom_sharding_spec_op,
    )
    from shardkeep.sharded.metadata import (
        MemoryFormatEncoding as MemoryFormatEncoding,
        ShardedTensorMetadata as ShardedTensorMetadata,
        ShardMetadata as ShardMetadata,
        TensorProperties as TensorProperties,
    )
    from shardkeep.sharded.modules import (
        Sharder as Sharder,
        ShardingPlan as ShardingPlan,
        ShardingPlanner as ShardingPlanner,
        pre_load_state_dict_hook as pre_load_state_dict_hook,
        shard_module as shard_module,
        shard_parameter as shard_parameter,
        state_dict_hook as state_dict_hook,
    )
    from shardkeep.sharded.optimizer import (
        ShardedOptimizer as ShardedOptimizer,
        named_params_with_sharded_tensor as named_params_with_sharded_tensor,
    )
    from shardkeep.sharded.picture import (
        draw_layout as draw_layout,
    )
    from shardkeep.sharded.remote_device import (
        RemoteDevice as RemoteDevice,
    )
    from shardkeep.sharded.saving import (
        load_with_process_group as load_with_process_group,
    )
    from shardkeep.sharded.scatter import (
        shard_tensor as shard_tensor,
    )
    from shardkeep.sharded.shard import (
        Shard as Shard,
    )
    from shardkeep.sharded.sharded_tensor import (
        ShardedTensor as ShardedTensor,
        ShardedTensorBase as ShardedTensorBase,
    )
    from shardkeep.sharded.specs import (
        ChunkShardingSpec as ChunkShardingSpec,
        EnumerableShardingSpec as EnumerableShardingSpec,
        ShardingSpec as ShardingSpec,
        infer_sharding_spec as infer_sharding_spec,
    )
    from shardkeep.state.adapting import parts as parts
    from shardkeep.state.broadcast import (
        broadcast_state_dict as broadcast_state_dict,
    )
    from shardkeep.state.copying import (
        copy_state_dict as copy_state_dict,
        create_cpu_state_dict as create_cpu_state_dict,
        offload_state_dict_to_cpu as offload_state_dict_to_cpu,
    )
    from shardkeep.state.cursor import DataCursor as DataCursor
    from shardkeep.state.diff import (
        StateDiff as StateDiff,
        check_state_dict_similarity as check_state_dict_similarity,
        diff_state_dict as diff_state_dict,
    )
    from shardkeep.state.distribute import (
        distribute_state_dict as distribute_state_dict,
    )
    from shardkeep.state.flatten import (
        flatten_state_dict as flatten_state_dict,
        traverse_state_dict as traverse_state_dict,
        unflatten_state_dict as unflatten_state_dict,
    )
    from shardkeep.state.gather import (
        gather_state_dict as gather_state_dict,
    )
    from shardkeep.state.iterate import (
        iterate_state_dict as iterate_state_dict,
    )
    from shardkeep.state.keeping import (
        per_rank as per_rank,
    )
    from shardkeep.state.nested import (
        flatten_sharded_tensors as flatten_sharded_tensors,
    )
    from shardkeep.state.paths import (
        get_element as get_element,
        set_element as set_element,
    )
    from shardkeep.state.rng import (
        RngState as RngState,
        rng_state as rng_state,
    )
    from shardkeep.state.staging import (
        Snapshot as Snapshot,
        Stager as Stager,
    )
    from shardkeep.storage import (
        LocalStorage as LocalStorage,
        MemoryStorage as MemoryStorage,
        OutcomeUnknownError as OutcomeUnknownError,
    )
    from shardkeep.storage.objects import ObjectStorage as ObjectStorage
    from shardkeep.transfer.background import (
        Handle as Handle,
    )
    from shardkeep.transfer.explain import (
        LoadExplanation as LoadExplanation,
        SaveExplanation as SaveExplanation,
    )
    from shardkeep.transfer.lazy import (
        Checkpoint as Checkpoint,
        StoredTensor as StoredTensor,
        TensorInfo as TensorInfo,
        VerifyReport as VerifyReport,
    )
    from shardkeep.transfer.prune import (
        PruneReport as PruneReport,
    )
    from shardkeep.transfer.report import SaveReport as SaveReport
    from shardkeep.transfer.restore import (
        LoadReport as LoadReport,
    )
    from shardkeep.transfer.retain import RunPrune as RunPrune
    from shardkeep.transfer.saving import SaveResult as SaveResult
    from shardkeep.transfer.steps import StepRecord as StepRecord
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "Box": "shardkeep.boxes",
            "ByteRanges": "shardkeep.boxes",
            "Checkpoint": "shardkeep.transfer.lazy",
            "Checkpointer": "shardkeep.checkpointer",
            "ChunkShardingSpec": "shardkeep.sharded.specs",
            "CompanionMismatch": "shardkeep.errors",
            "ConflictError": "shardkeep.errors",
            "CorruptError": "shardkeep.errors",
            "CoverError": "shardkeep.errors",
            "DataCursor": "shardkeep.state.cursor",
            "DeadlineError": "shardkeep.errors",
            "EnumerableShardingSpec": "shardkeep.sharded.specs",
            "Grid": "shardkeep.boxes",
            "Handle": "shardkeep.transfer.background",
            "InvalidError": "shardkeep.errors",
            "Layout": "shardkeep.layouts",
            "LayoutError": "shardkeep.errors",
            "LoadExplanation": "shardkeep.transfer.explain",
            "LoadReport": "shardkeep.transfer.restore",
            "LocalStorage": "shardkeep.storage",
            "MemoryFormatEncoding": "shardkeep.sharded.metadata",
            "MemoryStorage": "shardkeep.storage",
            "Mesh": "shardkeep.layouts",
            "NotFoundError": "shardkeep.errors",
            "ObjectStorage": "shardkeep.storage.objects",
            "OutcomeUnknownError": "shardkeep.storage",
            "PruneReport": "shardkeep.transfer.prune",
            "RankFailedError": "shardkeep.errors",
            "RankInputError": "shardkeep.errors",
            "RanksDisagreeError": "shardkeep.errors",
            "RemoteDevice": "shardkeep.sharded.remote_device",
            "Replicate": "shardkeep.layouts",
            "RngState": "shardkeep.state.rng",
            "RunPrune": "shardkeep.transfer.retain",
            "SaveExplanation": "shardkeep.transfer.explain",
            "SaveReport": "shardkeep.transfer.report",
            "SaveResult": "shardkeep.transfer.saving",
            "Shard": "shardkeep.sharded.shard",
            "ShardMetadata": "shardkeep.sharded.metadata",
            "ShardedOptimizer": "shardkeep.sharded.optimizer",
            "ShardedTensor": "shardkeep.sharded.sharded_tensor",
            "ShardedTensorBase": "shardkeep.sharded.sharded_tensor",
            "ShardedTensorMetadata": "shardkeep.sharded.metadata",
            "Sharder": "shardkeep.sharded.modules",
            "ShardingPlan": "shardkeep.sharded.modules",
            "ShardingPlanner": "shardkeep.sharded.modules",
            "ShardingSpec": "shardkeep.sharded.specs",
            "ShardkeepError": "shardkeep.errors",
            "Snapshot": "shardkeep.state.staging",
            "Split": "shardkeep.layouts",
            "Stager": "shardkeep.state.staging",
            "StateDiff": "shardkeep.state.diff",
            "StepRecord": "shardkeep.transfer.steps",
            "StorageError": "shardkeep.errors",
            "StoredTensor": "shardkeep.transfer.lazy",
            "TensorInfo": "shardkeep.transfer.lazy",
            "TensorProperties": "shardkeep.sharded.metadata",
            "TilingReport": "shardkeep.boxes",
            "UnsupportedError": "shardkeep.errors",
            "VerifyReport": "shardkeep.transfer.lazy",
            "VersionError": "shardkeep.errors",
            "broadcast_state_dict": "shardkeep.state.broadcast",
            "byte_ranges": "shardkeep.boxes",
            "check_state_dict_similarity": "shardkeep.state.diff",
            "check_tiling": "shardkeep.boxes",
            "copy_state_dict": "shardkeep.state.copying",
            "create_cpu_state_dict": "shardkeep.state.copying",
            "custom_sharded_op_impl": "shardkeep.sharded.functions",
            "custom_sharding_spec_op": "shardkeep.sharded.functions",
            "diff_state_dict": "shardkeep.state.diff",
            "distribute_state_dict": "shardkeep.state.distribute",
            "draw_layout": "shardkeep.sharded.picture",
            "explain": "shardkeep.checkpoint",
            "explain_save": "shardkeep.checkpoint",
            "export_checkpoint": "shardkeep.interchange",
            "flatten_sharded_tensors": "shardkeep.state.nested",
            "flatten_state_dict": "shardkeep.state.flatten",
            "gather_state_dict": "shardkeep.state.gather",
            "get_element": "shardkeep.state.paths",
            "import_checkpoint": "shardkeep.interchange",
            "infer_sharding_spec": "shardkeep.sharded.specs",
            "init_from_local_shards": "shardkeep.sharded.factories",
            "iterate_state_dict": "shardkeep.state.iterate",
            "load": "shardkeep.checkpoint",
            "load_with_process_group": "shardkeep.sharded.saving",
            "named_params_with_sharded_tensor": "shardkeep.sharded.optimizer",
            "offload_state_dict_to_cpu": "shardkeep.state.copying",
            "open": "shardkeep.checkpoint",
            "parts": "shardkeep.state.adapting",
            "per_rank": "shardkeep.state.keeping",
            "pre_load_state_dict_hook": "shardkeep.sharded.modules",
            "prepare_async": "shardkeep.checkpoint",
            "prune": "shardkeep.checkpoint",
            "register_value_type": "shardkeep.checkpoint",
            "rng_state": "shardkeep.state.rng",
            "save": "shardkeep.checkpoint",
            "save_async": "shardkeep.checkpoint",
            "set_element": "shardkeep.state.paths",
            "shard_module": "shardkeep.sharded.modules",
            "shard_parameter": "shardkeep.sharded.modules",
            "shard_tensor": "shardkeep.sharded.scatter",
            "sharded": "shardkeep.sharded",
            "state_dict_hook": "shardkeep.sharded.modules",
            "traverse_state_dict": "shardkeep.state.flatten",
            "unflatten_state_dict": "shardkeep.state.flatten",
        },
    )

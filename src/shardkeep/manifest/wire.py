"""Which JSON fields does a manifest have, and which part of the model is each?

These classes are the JSON, field by field and in its order. They go no further than the codec.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from shardkeep.boxes import Box
from shardkeep.errors import CorruptError
from shardkeep.manifest.digests import Digests
from shardkeep.manifest.files import FileTable
from shardkeep.manifest.grids import BoxGrid, ChunkGrid, SplitGrid
from shardkeep.manifest.limits import MAX_CELLS, MAX_FILES
from shardkeep.manifest.model import Manifest, TensorRecord
from shardkeep.manifest.runs import Run, Runs, decode_runs
from shardkeep.manifest.tree_codec import decode_tree, encode_tree


class WireFiles(msgspec.Struct, forbid_unknown_fields=True):
    """The data files as columns."""

    rank: Sequence[Run]
    number: Sequence[Run]
    nbytes: Sequence[Run]
    header_nbytes: Sequence[Run]
    header_digests: str


class WireGrid(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A grid, by splits or by boxes."""

    splits: tuple[tuple[int, ...], ...] | msgspec.UnsetType = msgspec.UNSET
    boxes: list[tuple[tuple[int, ...], tuple[int, ...]]] | msgspec.UnsetType = msgspec.UNSET
    files: Sequence[Run]


class WireManifest(msgspec.Struct, forbid_unknown_fields=True):
    """The JSON object."""

    format: str
    version: int
    save_id: str
    world: int
    tree: Any
    tensors: tuple[TensorRecord, ...]
    grids: list[WireGrid]
    files: WireFiles
    per_rank: tuple[str, ...]
    metadata: dict[str, Any]
    digest: str


def wire_of(manifest: Manifest, *, version: int) -> WireManifest:
    """The JSON of a manifest, with zeros in place of the digest."""
    tree = encode_tree(
        manifest.tree, tensor_count=len(manifest.tensors), per_rank=manifest.per_rank
    )
    return WireManifest(
        "shardkeep",
        version,
        manifest.save_id,
        manifest.world,
        tree,
        manifest.tensors,
        [_wire_grid(grid) for grid in manifest.grids],
        _wire_files(manifest.files),
        manifest.per_rank,
        dict(manifest.metadata),
        digest="0" * 32,
    )


def manifest_of(wire: WireManifest) -> Manifest:
    """The manifest that the JSON stands for; raises if a part cannot be one."""
    return Manifest(
        wire.save_id,
        wire.world,
        decode_tree(wire.tree, tensor_count=len(wire.tensors), per_rank=wire.per_rank),
        wire.tensors,
        tuple([_grid(grid, f"grids[{index}]") for index, grid in enumerate(wire.grids)]),
        files_of(wire.files),
        wire.per_rank,
        wire.metadata,
    )


def _wire_grid(grid: ChunkGrid) -> WireGrid:
    if isinstance(grid, SplitGrid):
        return WireGrid(splits=grid.splits, files=grid.files.runs)
    return WireGrid(boxes=[(box.start, box.stop) for box in grid.boxes], files=grid.files.runs)


def _wire_files(files: FileTable) -> WireFiles:
    return WireFiles(
        files.ranks.runs,
        files.numbers.runs,
        files.nbytes.runs,
        files.header_nbytes.runs,
        files.header_digests.hex(),
    )


def _grid(wire: WireGrid, what: str) -> ChunkGrid:
    files = _runs(wire.files, f"{what}.files", MAX_CELLS)
    splits, boxes, unset = wire.splits, wire.boxes, msgspec.UnsetType
    if isinstance(boxes, unset) and not isinstance(splits, unset):
        return SplitGrid(splits, files)
    if isinstance(splits, unset) and not isinstance(boxes, unset):
        return BoxGrid(tuple([Box(start, stop) for start, stop in boxes]), files)
    raise CorruptError(f"{what}: a grid has either splits or boxes")


def files_of(wire: WireFiles) -> FileTable:
    """The table that the columns stand for."""
    return FileTable(
        _runs(wire.rank, "files.rank", MAX_FILES),
        _runs(wire.number, "files.number", MAX_FILES),
        _runs(wire.nbytes, "files.nbytes", MAX_FILES),
        _runs(wire.header_nbytes, "files.header_nbytes", MAX_FILES),
        Digests.from_hex(wire.header_digests),
    )


def _runs(data: Sequence[Run], what: str, limit: int) -> Runs:
    try:
        return decode_runs(data, limit=limit)
    except CorruptError as error:
        raise CorruptError(f"{what}: {error}") from None

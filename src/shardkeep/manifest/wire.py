"""Which JSON fields does a manifest have, and which part of the model is each?

These classes are the JSON, field by field and in its order. They go no further than the codec.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from shardkeep.boxes import Box
from shardkeep.errors import CorruptError
from shardkeep.manifest.files import FileTable
from shardkeep.manifest.grids import BoxGrid, ChunkGrid, SplitGrid
from shardkeep.manifest.limits import MAX_CELLS
from shardkeep.manifest.model import Manifest, TensorRecord
from shardkeep.manifest.runs import Run
from shardkeep.manifest.tree_codec import decode_tree, encode_tree
from shardkeep.manifest.wire_files import WireFiles, files_of, runs_of


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
    files = runs_of(wire.files, f"{what}.files", MAX_CELLS)
    splits, boxes, unset = wire.splits, wire.boxes, msgspec.UnsetType
    if isinstance(boxes, unset) and not isinstance(splits, unset):
        return SplitGrid(splits, files)
    if isinstance(splits, unset) and not isinstance(boxes, unset):
        return BoxGrid(tuple([Box(start, stop) for start, stop in boxes]), files)
    raise CorruptError(f"{what}: a grid has either splits or boxes")

"""How do DCP's words for a state become those of a manifest, and the other way round?"""

# torch leaves the classes of its checkpoints in part untyped.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)

from shardkeep.boxes import Box
from shardkeep.errors import InvalidError
from shardkeep.manifest import (
    NO_GRID,
    ArrayNode,
    BoxGrid,
    ChunkGrid,
    FileRecord,
    FileTable,
    Json,
    Manifest,
    Node,
    Runs,
    SparseNode,
    SplitGrid,
    TensorNode,
    TensorRecord,
    decode_tree,
)
from shardkeep.plan.merge_trees import relabel
from shardkeep.state.dtypes import DTYPE_NAMES, TORCH_DTYPES
from shardkeep.translate.dcp_tree import build_tree
from shardkeep.translate.flattening import Leaves, flattened

Place = tuple[int, int]
"""Rank and number of a file."""


@dataclass(frozen=True, slots=True)
class WrittenTensor:
    """A chunk that a rank has written."""

    place: Place


@dataclass(frozen=True, slots=True)
class WrittenValue:
    """A value that a rank brings: its structure, and the tensors in it, which it has written."""

    tree: Json
    tensors: tuple[tuple[str, str, tuple[int, ...], Place], ...]
    """Name within the value, dtype, shape and file of each."""


@dataclass(frozen=True, slots=True)
class Written:
    """All that the ranks of a save say."""

    save_id: str
    world: int
    files: list[FileRecord]
    chunks: Mapping[tuple[str, tuple[int, ...]], Place]
    """By key and first cell."""
    values: Mapping[str, WrittenValue]


def manifest_of(metadata: Metadata, written: Written, user: Mapping[str, Json]) -> Manifest:
    """The manifest of a state that DCP has planned and the ranks have written."""
    return _Maker(written).make(metadata, user)


class _Maker:
    def __init__(self, written: Written) -> None:
        self._written = written
        ordered = sorted(written.files, key=lambda file: (file.number, file.rank))
        self._files = FileTable.of(ordered)
        self._index = {(file.rank, file.number): at for at, file in enumerate(ordered)}
        self._grids: dict[ChunkGrid, int] = {}
        self._tensors: list[TensorRecord] = []
        self._nodes: dict[str, Node] = {}

    def make(self, metadata: Metadata, user: Mapping[str, Json]) -> Manifest:
        for key, found in metadata.state_dict_metadata.items():
            if isinstance(found, TensorStorageMetadata):
                self._add_tensor(key, found)
            else:
                self._add_value(key, self._written.values[key])
        paths: Any = metadata.planner_data if isinstance(metadata.planner_data, dict) else {}
        tree = build_tree(self._nodes, paths, where="the state", has_values=True)
        return Manifest(
            save_id=self._written.save_id,
            world=self._written.world,
            tree=tree,
            tensors=tuple(self._tensors),
            grids=tuple(self._grids),
            files=self._files,
            metadata=dict(user),
        )

    def _add_tensor(self, key: str, found: TensorStorageMetadata) -> None:
        boxes = [
            Box(tuple(c.offsets), tuple(a + n for a, n in zip(c.offsets, c.sizes, strict=True)))
            for c in found.chunks
        ]
        chunks = {
            box: self._index[self._written.chunks[key, box.start]]
            for box in boxes
            if not box.is_empty
        }
        shape = tuple(found.size)
        grid = self._grid(shape, chunks)
        self._nodes[key] = TensorNode(len(self._tensors))
        self._tensors.append(
            TensorRecord(key, dtype_name(key, found.properties.dtype), shape, grid)
        )

    def _grid(self, shape: tuple[int, ...], chunks: Mapping[Box, int]) -> int:
        if not chunks:
            return NO_GRID
        grid = _grid_of(shape, chunks)
        return self._grids.setdefault(grid, len(self._grids))

    def _add_value(self, key: str, value: WrittenValue) -> None:
        first = len(self._tensors)
        for name, dtype, shape, place in value.tensors:
            whole = Box.whole(shape)
            grid = NO_GRID if whole.is_empty else self._grid(shape, {whole: self._index[place]})
            self._tensors.append(TensorRecord(f"{key}.{name}", dtype, shape, grid))
        tree = decode_tree(value.tree, tensor_count=len(value.tensors))
        self._nodes[key] = relabel(tree, range(first, first + len(value.tensors)))


def _grid_of(shape: tuple[int, ...], chunks: Mapping[Box, int]) -> ChunkGrid:
    """A grid that tensors of other shapes can share, where the chunks follow the rule."""
    counts = [len({box.start[dim] for box in chunks}) for dim in range(len(shape))]
    splits = tuple((count,) if count > 1 else () for count in counts)
    if math.prod(counts) != len(chunks):
        return BoxGrid(tuple(chunks), Runs.of(list(chunks.values())))
    no_files = Runs(((0, 0, len(chunks)),))
    regular = [box for box, _ in SplitGrid(splits, no_files).chunks(shape)]
    if len(regular) == len(chunks) and all(box in chunks for box in regular):
        return SplitGrid(splits, Runs.of([chunks[box] for box in regular]))
    return BoxGrid(tuple(chunks), Runs.of(list(chunks.values())))


def dtype_name(key: str, dtype: torch.dtype) -> str:
    """The format's name of a dtype; refuses what it cannot hold."""
    if dtype not in DTYPE_NAMES:
        raise InvalidError(f"{key!r}: dtype {dtype} cannot be kept")
    return DTYPE_NAMES[dtype]


def leaves_of(manifest: Manifest) -> Leaves:
    """What DCP finds under each of its keys."""
    return flattened(manifest.tree)


def metadata_of(manifest: Manifest, leaves: Leaves) -> Metadata:
    """A checkpoint in the words of DCP, for its planners."""
    listed: dict[str, Any] = {}
    for key, (_, node) in leaves.items():
        if isinstance(node, TensorNode | ArrayNode):
            listed[key] = _tensor(manifest, manifest.tensors[node.index])
        elif not isinstance(node, SparseNode):
            listed[key] = BytesStorageMetadata()
    return Metadata(listed, planner_data={key: path for key, (path, _) in leaves.items()})


def _tensor(manifest: Manifest, record: TensorRecord) -> TensorStorageMetadata:
    boxes: Iterable[Box] = [box for box, _ in manifest.chunks(record)]
    if not boxes:
        boxes = [Box.whole(record.shape)]
    chunks = [ChunkStorageMetadata(torch.Size(box.start), torch.Size(box.shape)) for box in boxes]
    properties = TensorProperties(TORCH_DTYPES[record.dtype])
    return TensorStorageMetadata(properties, torch.Size(record.shape), chunks)

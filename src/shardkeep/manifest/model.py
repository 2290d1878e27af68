"""What does a manifest say?

Everything but the data: the structure of the state, its tensors, how each is divided into chunks,
and the files that hold them. All of it frozen; `codec` reads and writes it, `checks` says what
makes sense.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import msgspec

from shardkeep.boxes import Box
from shardkeep.errors import NotFoundError
from shardkeep.manifest.dtypes import itemsize
from shardkeep.manifest.files import FileTable
from shardkeep.manifest.grids import Chunk, ChunkGrid
from shardkeep.manifest.names import file_name
from shardkeep.manifest.nodes import Node
from shardkeep.manifest.plain_json import Json

NO_GRID = -1
"""The grid of a tensor without cells: it is stored nowhere."""


# Decoded by the 10,000s, straight into this class: hence a Struct. It holds no cycles: no gc.
class TensorRecord(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False
):
    """A tensor as the manifest lists it; `grid` is an index into the grids, or NO_GRID."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    grid: int

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel * itemsize(self.dtype)


@dataclass(frozen=True)
class Manifest:
    """A checkpoint without its data."""

    save_id: str
    world: int
    """The number of ranks that took part."""
    tree: Node
    tensors: tuple[TensorRecord, ...] = ()
    grids: tuple[ChunkGrid, ...] = ()
    files: FileTable = field(default_factory=FileTable)
    per_rank: tuple[str, ...] = ()
    """The keys of values that each rank has of its own, sorted."""
    metadata: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """The user's; not to be changed."""

    @cached_property
    def by_key(self) -> Mapping[str, TensorRecord]:
        """All tensors, in their order."""
        return {record.key: record for record in self.tensors}

    def tensor(self, key: str) -> TensorRecord:
        """The tensor of this key; raises NotFoundError if there is none."""
        if key not in self.by_key:
            raise NotFoundError(f"the checkpoint has no tensor {key!r}")
        return self.by_key[key]

    def chunks(self, record: TensorRecord) -> Iterator[Chunk]:
        """Yield each chunk of a tensor with the index of its file."""
        if record.grid == NO_GRID:
            return iter(())
        return self.grids[record.grid].chunks(record.shape)

    def chunks_meeting(self, record: TensorRecord, box: Box) -> list[Chunk]:
        """The chunks of a tensor that share cells with `box`, with the indices of their files."""
        if record.grid == NO_GRID:
            return []
        return self.grids[record.grid].chunks_meeting(record.shape, box)

    def file_name(self, index: int) -> str:
        """The name of the file with this index."""
        return file_name(self.save_id, self.files.ranks[index], self.files.numbers[index])

"""Into which chunks is a tensor cut for writing, and who writes each?

Every rank answers for itself by arithmetic; the one that commits can list the whole answer.
A regular division is a grid of nested cuts. Each cut says what tells its pieces apart: a mesh
axis, the replicas that share the writing, or the files of a rank.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from shardkeep.boxes import Box
from shardkeep.layouts import Layout, MeshLayout, Part, Replicate, Split
from shardkeep.layouts.mesh import unravel

Ints = NDArray[np.int64]

Teller = int | Literal["replicas", "files"]
"""What a cut's pieces are told apart by: an axis of the mesh, the replicas, or a rank's files."""


@dataclass(frozen=True, slots=True)
class Cut:
    """One level of a dim's nested cuts."""

    count: int
    teller: Teller


@dataclass(frozen=True, slots=True)
class Chunk:
    """A box that one rank writes to one of its files, and where it lies in its memory."""

    box: Box
    number: int
    buffer: int
    place: Box


@dataclass(frozen=True)
class RegularDivision:
    """Cells of nested cuts. The replica and file of a cell are fixed where no cut tells them."""

    layout: MeshLayout
    cuts: tuple[tuple[Cut, ...], ...]
    replica: int = 0
    number: int = 0

    @property
    def splits(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(cut.count for cut in cuts) for cuts in self.cuts)

    def chunks_of(self, rank: int) -> tuple[Chunk, ...]:
        """What `rank` writes, without empty chunks."""
        if rank not in self._known:
            self._known[rank] = self._chunks_of(rank)
        return self._known[rank]

    @cached_property
    def _known(self) -> dict[int, tuple[Chunk, ...]]:
        # Of thousands of layers alike, all have the same division.
        return {}

    def _chunks_of(self, rank: int) -> tuple[Chunk, ...]:
        coordinate = self.layout.mesh.coordinate_of(rank)
        if coordinate is None:
            return ()
        replica = _replica_index(self.layout, coordinate)
        if replica != self.replica and not self._tells("replicas"):
            return ()
        return _chunks(self.layout.global_shape, self.cuts, coordinate, replica, self.number)

    def _tells(self, teller: Teller) -> bool:
        return any(cut.teller == teller for cuts in self.cuts for cut in cuts)

    def writers(self) -> tuple[Ints, Ints]:
        """Ranks and file numbers of all cells in row-major order, empty cells included."""
        flat = [cut for cuts in self.cuts for cut in cuts]
        mesh, replicated = self.layout.mesh, _replicated_axes(self.layout)
        sizes = [mesh.shape[axis] for axis in replicated]
        strides = _strides(mesh.shape)
        counts = [cut.count for cut in flat]
        index, number = np.zeros(counts, np.int64), np.full(counts, self.number, np.int64)
        if not self._tells("replicas"):
            fixed = unravel(self.replica, sizes)
            index += sum(at * strides[axis] for axis, at in zip(replicated, fixed, strict=True))
        for level, cut in enumerate(flat):
            position = np.arange(cut.count).reshape([-1, *[1] * (len(flat) - level - 1)])
            if cut.teller == "files":
                number[...] = position
            elif cut.teller == "replicas":
                at = np.unravel_index(position, sizes)
                index += sum(strides[axis] * one for axis, one in zip(replicated, at, strict=True))
            else:
                index += position * strides[cut.teller]
        return np.asarray(mesh.ranks, np.int64)[index.ravel()], number.ravel()


@lru_cache(maxsize=16384)
def _chunks(
    shape: tuple[int, ...],
    cuts: tuple[tuple[Cut, ...], ...],
    coordinate: tuple[int, ...],
    replica: int,
    number: int,
) -> tuple[Chunk, ...]:
    """What the rank at `coordinate` writes; the mesh's cuts alone give the box that it holds."""
    files = max((cut.count for dim in cuts for cut in dim if cut.teller == "files"), default=0)
    held = [[cut for cut in dim if isinstance(cut.teller, int)] for dim in cuts]
    origin = _box(shape, held, coordinate, replica, 0).start
    found: list[Chunk] = []
    for file in range(files) if files else (number,):
        box = _box(shape, cuts, coordinate, replica, file)
        if not box.is_empty:
            found.append(Chunk(box, file, 0, box.relative_to(origin)))
    return tuple(found)


def _box(
    shape: tuple[int, ...],
    cuts: Sequence[Sequence[Cut]],
    coordinate: tuple[int, ...],
    replica: int,
    number: int,
) -> Box:
    spans = [
        _span(side, [(cut.count, _index(cut, coordinate, replica, number)) for cut in dim])
        for side, dim in zip(shape, cuts, strict=True)
    ]
    return Box(tuple([a for a, _ in spans]), tuple([b for _, b in spans]))


@dataclass(frozen=True)
class ListedDivision:
    """Chunks that follow no rule: box, writer's part and file number."""

    shape: tuple[int, ...]
    chunks: tuple[tuple[Part, Box, int], ...]

    def chunks_of(self, rank: int) -> tuple[Chunk, ...]:
        """What `rank` writes."""
        return tuple(
            Chunk(
                box,
                number,
                part.buffer,
                box.relative_to(part.box.start).shifted(part.place.start),
            )
            for part, box, number in self.chunks
            if part.rank == rank
        )


Division = RegularDivision | ListedDivision


def regular_cuts(layout: Layout) -> tuple[tuple[Cut, ...], ...] | None:
    """The mesh's cuts of each dim, outermost first; None where they make no regular grid."""
    if not isinstance(layout, MeshLayout):
        return None
    return _mesh_cuts(layout.global_shape, layout.mesh.shape, layout.placements)


@lru_cache(maxsize=65536)
def _mesh_cuts(
    shape: tuple[int, ...],
    mesh_shape: tuple[int, ...],
    placements: tuple[Replicate | Split, ...],
) -> tuple[tuple[Cut, ...], ...] | None:
    cuts: list[tuple[Cut, ...]] = []
    for dim, side in enumerate(shape):
        axes = [
            (axis, placement.interleave)
            for axis, placement in enumerate(placements)
            if isinstance(placement, Split) and placement.dim == dim
        ]
        order = _outermost_first(axes, mesh_shape, side)
        if order is None:
            return None
        cuts.append(tuple(Cut(mesh_shape[axis], axis) for axis in order))
    return tuple(cuts)


def _outermost_first(
    axes: Sequence[tuple[int, int]], mesh_shape: tuple[int, ...], side: int
) -> list[int] | None:
    """The axes of one dim from the outermost cut to the innermost.

    An axis that interleaves k pieces lies inside the later axes that make up k, which is exact
    where the dim divides evenly; anything else has no order.
    """
    if all(interleave == 1 for _, interleave in axes):
        return [axis for axis, _ in axes]
    if side % math.prod(mesh_shape[axis] for axis, _ in axes):
        return None
    order: list[int] = []
    for axis, interleave in reversed(axes):
        outer = 0
        while interleave > 1:
            if outer == len(order) or interleave % mesh_shape[order[outer]]:
                return None
            interleave //= mesh_shape[order[outer]]
            outer += 1
        order.insert(outer, axis)
    return order


def _index(cut: Cut, coordinate: tuple[int, ...], replica: int, number: int) -> int:
    if cut.teller == "replicas":
        return replica
    return number if cut.teller == "files" else coordinate[cut.teller]


def _span(side: int, path: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """The piece of `side` that the nested (count, index) pairs lead to."""
    start, length = 0, side
    for count, index in path:
        step = -(-length // count)
        first = min(step * index, length)
        start, length = start + first, min(step * (index + 1), length) - first
    return start, start + length


def _replicated_axes(layout: MeshLayout) -> list[int]:
    return [
        axis for axis, placement in enumerate(layout.placements) if isinstance(placement, Replicate)
    ]


def replica_count(layout: MeshLayout) -> int:
    """How many ranks hold each box."""
    return math.prod(layout.mesh.shape[axis] for axis in _replicated_axes(layout))


def _replica_index(layout: MeshLayout, coordinate: tuple[int, ...]) -> int:
    """Which of the holders of its box the rank at `coordinate` is."""
    index = 0
    for axis in _replicated_axes(layout):
        index = index * layout.mesh.shape[axis] + coordinate[axis]
    return index


def _strides(shape: tuple[int, ...]) -> list[int]:
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]

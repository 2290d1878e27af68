"""Which boxes does a rank of a mesh hold, for given placements?"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property, lru_cache

from shardkeep.boxes import Box, Runs, chunk_runs, interleaved_chunk_runs
from shardkeep.errors import LayoutError
from shardkeep.layouts.layout import Layout, Part, Shape
from shardkeep.layouts.mesh import Mesh
from shardkeep.layouts.placements import Placement, Split


@dataclass(frozen=True)
class MeshLayout(Layout):
    """A tensor placed on a mesh: axes cut dims from left to right, as DTensor does."""

    global_shape: Shape
    mesh: Mesh
    placements: tuple[Placement, ...]

    def __post_init__(self) -> None:
        if len(self.placements) != len(self.mesh.shape):
            raise LayoutError(
                f"a mesh of {len(self.mesh.shape)} axes needs as many placements, "
                f"got {len(self.placements)}"
            )
        normal = tuple(self._inside(placement) for placement in self.placements)
        object.__setattr__(self, "placements", normal)

    def _inside(self, placement: Placement) -> Placement:
        """The placement with its dim counted from the front."""
        if not isinstance(placement, Split):
            return placement
        ndim = len(self.global_shape)
        if not -ndim <= placement.dim < ndim:
            raise LayoutError(f"{placement} splits a dim that shape {self.global_shape} lacks")
        return Split(placement.dim % ndim, placement.interleave)

    @cached_property
    def _hash(self) -> int:
        return hash((self.global_shape, self.mesh, self.placements))

    def __hash__(self) -> int:
        return self._hash

    @property
    def shape(self) -> Shape:
        return self.global_shape

    @property
    def ranks(self) -> tuple[int, ...]:
        return self._ranks

    @cached_property
    def _ranks(self) -> tuple[int, ...]:
        return tuple(sorted(self.mesh.ranks))

    def runs_of(self, rank: int) -> tuple[Runs, ...] | None:
        """The index runs of each dim that `rank` holds, in the order it holds them."""
        coordinate = self.mesh.coordinate_of(rank)
        if coordinate is None:
            return None
        return _runs(self.global_shape, self.mesh.shape, self.placements, coordinate)

    def parts_of(self, rank: int) -> tuple[Part, ...]:
        runs = self.runs_of(rank)
        return () if runs is None else _parts(runs, rank)

    def buffer_shapes_of(self, rank: int) -> tuple[Shape, ...]:
        runs = self.runs_of(rank)
        return () if runs is None else (tuple(map(_length, runs)),)


@lru_cache(maxsize=4096)
def mesh_layout(shape: Shape, mesh: Mesh, placements: tuple[Placement, ...]) -> MeshLayout:
    """The layout, the same object for equal arguments: what it has worked out is not lost."""
    return MeshLayout(shape, mesh, placements)


@lru_cache(maxsize=65536)
def _runs(
    shape: Shape,
    mesh_shape: tuple[int, ...],
    placements: tuple[Placement, ...],
    coordinate: tuple[int, ...],
) -> tuple[Runs, ...]:
    runs: list[Runs] = [((0, side),) if side else () for side in shape]
    for size, placement, index in zip(mesh_shape, placements, coordinate, strict=True):
        if isinstance(placement, Split):
            dim = placement.dim
            runs[dim] = _cut(runs[dim], size, index, placement.interleave)
    return tuple(runs)


def _cut(runs: Runs, parts: int, index: int, interleave: int) -> Runs:
    if interleave == 1:
        return chunk_runs(runs, parts, index)
    return interleaved_chunk_runs(runs, parts, index, interleave)


@lru_cache(maxsize=65536)
def _parts(runs: tuple[Runs, ...], rank: int) -> tuple[Part, ...]:
    placed = [_with_positions(dim_runs) for dim_runs in runs]
    return tuple(
        Part(
            Box(tuple(start for start, _, _ in cell), tuple(stop for _, stop, _ in cell)),
            rank,
            0,
            Box(
                tuple(position for _, _, position in cell),
                tuple(position + stop - start for start, stop, position in cell),
            ),
        )
        for cell in itertools.product(*placed)
    )


def _with_positions(runs: Runs) -> list[tuple[int, int, int]]:
    """Each run with the position of its first index in the local tensor."""
    placed: list[tuple[int, int, int]] = []
    position = 0
    for start, stop in runs:
        placed.append((start, stop, position))
        position += stop - start
    return placed


def _length(runs: Runs) -> int:
    return sum(stop - start for start, stop in runs)

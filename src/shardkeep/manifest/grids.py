"""Into which chunks is a tensor divided, and which file holds each?

Most tensors are divided by a rule that a few grids describe for all of them. Whatever the number
of chunks, those that a box meets are found by arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, product
from typing import TYPE_CHECKING

from shardkeep.boxes import Box
from shardkeep.errors import InvalidError
from shardkeep.manifest.pieces import Piece, pieces, pieces_meeting
from shardkeep.manifest.runs import Runs

if TYPE_CHECKING:
    from shardkeep.boxes.box_arrays import Ints

Chunk = tuple[Box, int]
"""The box of a chunk, and the index of the file that holds it."""

# Up to this many boxes, comparing one by one is faster than arrays (and than importing numpy).
_FEW_BOXES = 32


@dataclass(frozen=True, slots=True)
class SplitGrid:
    """Dim d is cut into splits[d][0] pieces by the chunk rule, each of these into splits[d][1], ...

    Cells count row-major. Cells without content count, but are no chunks.

    >>> grid = SplitGrid(((2,), ()), Runs.of([7, 8]))
    >>> print(*grid.chunks_meeting((4, 3), Box((3, 0), (4, 1))))
    (Box(start=(2, 0), stop=(4, 3)), 8)
    """

    splits: tuple[tuple[int, ...], ...]
    files: Runs
    """The index of each cell's file."""

    @property
    def cell_count(self) -> int:
        return math.prod(chain.from_iterable(self.splits))

    def chunks(self, shape: Sequence[int]) -> Iterator[Chunk]:
        """Yield all chunks of a tensor of this shape, in row-major order."""
        self._require_ndim(shape)
        counts = self._piece_counts()
        for found in _walk(list(zip(shape, self.splits, strict=True))):
            yield self._chunk(found, counts)

    def chunks_meeting(self, shape: Sequence[int], box: Box) -> list[Chunk]:
        """The chunks that share cells with `box`, whole, in row-major order."""
        self._require_ndim(shape)
        self._require_ndim(box.start)
        dims = zip(shape, self.splits, box.start, box.stop, strict=True)
        counts = self._piece_counts()
        places = product(*(pieces_meeting(*dim) for dim in dims))
        return [self._chunk(found, counts) for found in places]

    def _piece_counts(self) -> list[int]:
        return [math.prod(counts) for counts in self.splits]

    def _chunk(self, found: Sequence[Piece], piece_counts: Sequence[int]) -> Chunk:
        cell = 0
        for (number, _, _), count in zip(found, piece_counts, strict=True):
            cell = cell * count + number
        box = Box(tuple([start for _, start, _ in found]), tuple([stop for _, _, stop in found]))
        return box, self.files[cell]

    def _require_ndim(self, numbers: Sequence[int]) -> None:
        if len(numbers) != len(self.splits):
            raise InvalidError(
                f"{tuple(numbers)} has {len(numbers)} dims, the grid {len(self.splits)}"
            )


def _walk(dims: Sequence[tuple[int, tuple[int, ...]]]) -> Iterator[tuple[Piece, ...]]:
    """All combinations of pieces. Unlike `product`, it never holds the pieces of a dim at once."""
    if not dims:
        yield ()
        return
    for piece in pieces(*dims[0]):
        for others in _walk(dims[1:]):
            yield (piece, *others)


@dataclass(frozen=True)
class BoxGrid:
    """Chunks that follow no rule, written out."""

    boxes: tuple[Box, ...]
    files: Runs
    """The index of each box's file."""

    @property
    def cell_count(self) -> int:
        return len(self.boxes)

    def chunks(self, shape: Sequence[int]) -> Iterator[Chunk]:
        """Yield all chunks of the tensor, which has this shape."""
        return zip(self.boxes, self.files, strict=True)

    def chunks_meeting(self, shape: Sequence[int], box: Box) -> list[Chunk]:
        """The chunks that share cells with `box`, whole, in their order."""
        if box.ndim != len(shape):
            raise InvalidError(f"{box} has {box.ndim} dims, the tensor {len(shape)}")
        return [(self.boxes[index], self.files[index]) for index in self._indices_meeting(box)]

    def _indices_meeting(self, box: Box) -> Iterable[int]:
        if len(self.boxes) <= _FEW_BOXES:
            return [index for index, chunk in enumerate(self.boxes) if chunk.overlaps(box)]
        if box.is_empty:
            return []
        import numpy as np

        (starts, stops), start, stop = self._coordinates, np.array(box.start), np.array(box.stop)
        meeting = (starts < stop[:, None]) & (stops > start[:, None])
        return np.flatnonzero(meeting.all(axis=0)).tolist()

    @cached_property
    def _coordinates(self) -> tuple[Ints, Ints]:
        from shardkeep.boxes.box_arrays import coordinates_of

        return coordinates_of(self.boxes, self.boxes[0].ndim)


ChunkGrid = SplitGrid | BoxGrid

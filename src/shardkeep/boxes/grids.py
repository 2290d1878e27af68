"""Which cell of a regular division is this, and which cells does a box meet?

A `Grid` is a tiling described by cuts per dim instead of a list of boxes, so that both
questions are answered by arithmetic, whatever the number of cells.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

from shardkeep.boxes.box import Box, trusted_box
from shardkeep.boxes.splits import nested_split
from shardkeep.errors import InvalidError


@dataclass(frozen=True, slots=True)
class Grid:
    """A tiling by cuts: dim d breaks at `cuts[d]`, from 0 up to its size. Cells count row-major.

    A repeated cut makes an empty cell, as uneven splits do.

    >>> grid = Grid.split((5, 4), [[4], [2]])
    >>> grid.cuts, grid.cell_count
    (((0, 2, 4, 5, 5), (0, 2, 4)), 8)
    >>> print(grid.cell(5), *grid.cells_meeting(Box((3, 0), (4, 2))))
    [4:5, 2:4] (2, Box(start=(3, 0), stop=(4, 2)))
    """

    cuts: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        for dim, cuts in enumerate(self.cuts):
            if len(cuts) < 2 or cuts[0] != 0 or any(a > b for a, b in pairwise(cuts)):
                raise InvalidError(f"cuts must rise from 0 to the size, got {cuts} in dim {dim}")

    @classmethod
    def split(cls, shape: Sequence[int], counts: Sequence[Sequence[int]]) -> Grid:
        """The grid of `shape` in which dim d is split by `counts[d][0]`, each piece by the next."""
        if len(shape) != len(counts):
            raise InvalidError(
                f"shape {tuple(shape)} has {len(shape)} dims, got counts for {len(counts)}"
            )
        spans = [nested_split(n, parts) for n, parts in zip(shape, counts, strict=True)]
        return cls(tuple([(0, *(stop for _, stop in dim_spans)) for dim_spans in spans]))

    @property
    def shape(self) -> tuple[int, ...]:
        """Of what is tiled."""
        return tuple([cuts[-1] for cuts in self.cuts])

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of cells along each dim."""
        return tuple([len(cuts) - 1 for cuts in self.cuts])

    @property
    def cell_count(self) -> int:
        """How many cells there are, empty ones included."""
        return math.prod(self.counts)

    def cell(self, index: int) -> Box:
        """The box of the cell with this row-major index."""
        if not 0 <= index < self.cell_count:
            raise InvalidError(f"cell {index} is not one of {self.cell_count} cells")
        spans: list[tuple[int, int]] = []
        for cuts in reversed(self.cuts):
            index, place = divmod(index, len(cuts) - 1)
            spans.append((cuts[place], cuts[place + 1]))
        return Box(tuple([a for a, _ in reversed(spans)]), tuple([b for _, b in reversed(spans)]))

    def cells(self) -> Iterator[Box]:
        """Yield all cells in row-major order."""
        starts = product(*(cuts[:-1] for cuts in self.cuts))
        stops = product(*(cuts[1:] for cuts in self.cuts))
        return map(Box, starts, stops)

    def cells_meeting(self, box: Box) -> list[tuple[int, Box]]:
        """The index of each cell that shares cells with `box`, and what they share."""
        if box.ndim != len(self.cuts):
            raise InvalidError(f"box {box} has {box.ndim} dims, the grid has {len(self.cuts)}")
        dims = zip(self.cuts, box.start, box.stop, strict=True)
        places = product(*(_places_meeting(cuts, start, stop) for cuts, start, stop in dims))
        return [self._shared(place, box) for place in places]

    def _shared(self, place: tuple[int, ...], box: Box) -> tuple[int, Box]:
        index, start, stop = 0, list[int](), list[int]()
        for i, cuts, a, b in zip(place, self.cuts, box.start, box.stop, strict=True):
            index = index * (len(cuts) - 1) + i
            start.append(max(cuts[i], a))
            stop.append(min(cuts[i + 1], b))
        return index, trusted_box(tuple(start), tuple(stop))


def _places_meeting(cuts: tuple[int, ...], start: int, stop: int) -> list[int]:
    """The places along one dim whose cells share something with `start:stop`."""
    if start >= stop:
        return []
    first, last = bisect_right(cuts, start) - 1, min(bisect_left(cuts, stop), len(cuts) - 1)
    return [place for place in range(first, last) if cuts[place] < cuts[place + 1]]

"""How are all divisions written down as few grids?"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np

from shardkeep.manifest import NO_GRID, BoxGrid, ChunkGrid, Runs, SplitGrid, TensorRecord
from shardkeep.plan.divide import Division, Ints, RegularDivision
from shardkeep.plan.views import Entry

FileIndex = Mapping[tuple[int, int], int]
"""(rank, number) -> place in the table of files."""


class GridTable:
    """Grids by number; equal ones are kept once."""

    def __init__(self, files: FileIndex) -> None:
        self._files = files
        self._numbers: dict[object, int] = {}
        self.grids: list[ChunkGrid] = []

    @cached_property
    def _places(self) -> Ints:
        """The place of each file by number and rank; 0 where there is none."""
        ranks, numbers = zip(*self._files, strict=True) if self._files else ((0,), (0,))
        places = np.zeros((max(numbers) + 1, max(ranks) + 1), np.int64)
        places[numbers, ranks] = list(self._files.values()) or 0
        return places

    def add(self, division: Division | None) -> int:
        """The number of the division's grid; -1 for a tensor without cells."""
        if division is None:
            return NO_GRID
        identity = self._identity(division)
        if identity not in self._numbers:
            self._numbers[identity] = len(self.grids)
            self.grids.append(self._grid(division))
        return self._numbers[identity]

    def _identity(self, division: Division) -> object:
        if isinstance(division, RegularDivision):
            # Not the shape: tensors of all shapes share a grid.
            placements = division.layout.placements
            return (
                division.layout.mesh,
                placements,
                division.cuts,
                division.replica,
                division.number,
            )
        return division

    def _grid(self, division: Division) -> ChunkGrid:
        if isinstance(division, RegularDivision):
            # Cells without content have no file of their own; any listed one may stand for them.
            ranks, numbers = division.writers()
            rows, columns = self._places.shape
            within = np.minimum(numbers, rows - 1), np.minimum(ranks, columns - 1)
            return SplitGrid(division.splits, Runs.of(self._places[within].tolist()))
        boxes = tuple(box for _, box, _ in division.chunks)
        files = Runs.of([self._files[part.rank, number] for part, _, number in division.chunks])
        return BoxGrid(boxes, files)


def tensor_records(
    entries: Mapping[str, Entry], divisions: Mapping[str, Division], table: GridTable
) -> tuple[TensorRecord, ...]:
    """Every tensor with the number of its grid, in the order of `entries`."""
    # Tensors alike have one division: it is hashed once.
    numbers: dict[int, int] = {}
    records: list[TensorRecord] = []
    for key, entry in entries.items():
        division = divisions.get(key)
        number = numbers.get(id(division))
        if number is None:
            number = numbers[id(division)] = table.add(division)
        records.append(TensorRecord(key, entry.dtype, entry.shape, number))
    return tuple(records)

"""Which data files make up the checkpoint?

They are kept as columns of runs: a job of 16,384 ranks lists its files in a few numbers each.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardkeep.manifest.digests import Digests
from shardkeep.manifest.runs import Runs

_NONE = Runs(())
_NO_DIGESTS = Digests()


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A data file as the manifest lists it."""

    rank: int
    number: int
    nbytes: int
    """Size of the file."""
    header_nbytes: int
    """Where the data start."""
    header_digest: int
    """XXH3-64 of the first `header_nbytes` bytes."""


@dataclass(frozen=True, slots=True)
class FileTable:
    """Columns of equal length, ordered by number, then rank.

    >>> table = FileTable.of([FileRecord(1, 0, 8192, 4096, 7), FileRecord(0, 0, 4096, 4096, 5)])
    >>> len(table), table[1], table.find(rank=1, number=0)
    (2, FileRecord(rank=1, number=0, nbytes=8192, header_nbytes=4096, header_digest=7), 1)
    """

    ranks: Runs = _NONE
    numbers: Runs = _NONE
    nbytes: Runs = _NONE
    header_nbytes: Runs = _NONE
    header_digests: Digests = _NO_DIGESTS

    @classmethod
    def of(cls, records: Sequence[FileRecord]) -> FileTable:
        """The table of these files, put in order."""
        rows = sorted(records, key=lambda record: (record.number, record.rank))
        return cls(
            Runs.of([row.rank for row in rows]),
            Runs.of([row.number for row in rows]),
            Runs.of([row.nbytes for row in rows]),
            Runs.of([row.header_nbytes for row in rows]),
            Digests.of([row.header_digest for row in rows]),
        )

    def __len__(self) -> int:
        return len(self.header_digests)

    def __getitem__(self, index: int) -> FileRecord:
        return FileRecord(
            self.ranks[index],
            self.numbers[index],
            self.nbytes[index],
            self.header_nbytes[index],
            self.header_digests[index],
        )

    def __iter__(self) -> Iterator[FileRecord]:
        columns = self.ranks, self.numbers, self.nbytes, self.header_nbytes, self.header_digests
        return map(FileRecord, *columns)

    def find(self, *, rank: int, number: int) -> int | None:
        """The index of a rank's file, or None if it is not listed."""
        wanted = number, rank
        index = bisect_left(range(len(self)), wanted, key=self._order)
        return index if index < len(self) and self._order(index) == wanted else None

    def _order(self, index: int) -> tuple[int, int]:
        return self.numbers[index], self.ranks[index]

"""Which reads of a file follow each other, so that they can be done in one go?

Blocks that lie in two tensors are then read and checked once, and go straight to both.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from shardkeep.plan.reads import DirectRead, Read, ScatterRead, SpanRead, WindowRead

# What one thread reads at a time: enough to go on by itself, little enough to share the work.
_SHARE_NBYTES = 32 * 1024 * 1024
Array = np.ndarray[Any, np.dtype[Any]]


class Blocks(Protocol):
    """What is used of an open file."""

    @property
    def data_start(self) -> int: ...
    @property
    def block_nbytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Run:
    """Bytes of a file that follow each other and land in targets as they are."""

    start: int
    stop: int
    starts: Sequence[int]
    """Where in the file each target's bytes begin; the first at the run's start or before."""
    targets: Sequence[memoryview]

    def parts(self, start: int, stop: int) -> list[memoryview]:
        """The memory for a range of the run's bytes."""
        found: list[memoryview] = []
        number = bisect.bisect_right(self.starts, start) - 1
        while start < stop:
            at = start - self.starts[number]
            part = self.targets[number][at : at + stop - start]
            found.append(part)
            start += len(part)
            number += 1
        return found


Act = Run | WindowRead | SpanRead | ScatterRead


def acts_of(reads: Sequence[Read], targets: Sequence[Array], file: Blocks) -> Iterator[Act]:
    """The reads of one file, in order, those that are adjacent as runs of bounded size."""
    adjacent: list[DirectRead] = []
    for read in reads:
        if adjacent and not (isinstance(read, DirectRead) and read.start == adjacent[-1].stop):
            yield from _runs(adjacent, targets, file)
            adjacent = []
        if isinstance(read, DirectRead):
            adjacent.append(read)
        else:
            yield read
    if adjacent:
        yield from _runs(adjacent, targets, file)


def _runs(reads: Sequence[DirectRead], targets: Sequence[Array], file: Blocks) -> Iterator[Run]:
    """Adjacent reads as runs that begin and end with a block, but for the first and the last."""
    starts = [read.start for read in reads]
    memory = [targets[read.target].reshape(-1).view(np.uint8).data for read in reads]
    share = max(1, _SHARE_NBYTES // file.block_nbytes) * file.block_nbytes
    at, stop = starts[0], reads[-1].stop
    while at < stop:
        until = min(stop, at - (at - file.data_start) % file.block_nbytes + share)
        yield Run(at, until, starts, memory)
        at = until

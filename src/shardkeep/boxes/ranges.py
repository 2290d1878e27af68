"""Where do a box's bytes lie in a row-major buffer?

They lie in equally long runs, as far apart as a few nested loops say. So a box of any size
is described in constant space, and a reader sees at once whether it is one run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardkeep.boxes.box import Box
from shardkeep.errors import InvalidError


@dataclass(frozen=True, slots=True)
class ByteRanges:
    """The byte ranges of a box, in row-major order.

    `loops` are (count, stride in bytes), outermost first, around one run of `run_nbytes` that
    starts at `first`. Runs are maximal: none ends where the next one starts.

    >>> ranges = ByteRanges(first=8, run_nbytes=4, loops=((2, 16),))
    >>> list(ranges), ranges.total_nbytes
    ([(8, 12), (24, 28)], 8)
    """

    first: int
    run_nbytes: int
    loops: tuple[tuple[int, int], ...] = ()

    @property
    def run_count(self) -> int:
        """How many byte ranges there are."""
        return math.prod([count for count, _ in self.loops])

    @property
    def total_nbytes(self) -> int:
        """The bytes of all of them."""
        return self.run_nbytes * self.run_count

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield the (start, stop) of each run."""
        return ((start, start + self.run_nbytes) for start in _starts(self.first, self.loops))


def byte_ranges(shape: Sequence[int], box: Box, itemsize: int) -> ByteRanges:
    """The byte ranges that `box` takes in a row-major buffer of `shape`.

    An empty box has no runs, and a 0-dim box has one.

    >>> list(byte_ranges((4, 8), Box((1, 2), (3, 4)), itemsize=2))
    [(20, 24), (36, 40)]
    >>> list(byte_ranges((4, 8), Box((1, 0), (3, 8)), itemsize=2))
    [(16, 48)]
    """
    if itemsize < 1:
        raise InvalidError(f"itemsize is {itemsize}; expected 1 or more bytes")
    if not Box.whole(shape).contains(box):
        raise InvalidError(f"box {box} lies outside shape {tuple(shape)}")
    if box.is_empty:
        return ByteRanges(0, 0, ((0, 0),))
    return _nonempty_ranges(shape, box, itemsize)


def _nonempty_ranges(shape: Sequence[int], box: Box, itemsize: int) -> ByteRanges:
    loops = [(1, itemsize)]  # Innermost first; the first loop turns into the run itself.
    stride, first = itemsize, 0
    for n, start, stop in zip(shape[::-1], box.start[::-1], box.stop[::-1], strict=True):
        first += start * stride
        count, inner_stride = loops[-1]
        if count * inner_stride == stride:  # The inner dims are full: one longer loop does both.
            loops[-1] = (count * (stop - start), inner_stride)
        elif stop - start > 1:
            loops.append((stop - start, stride))
        stride *= n
    return ByteRanges(first, loops[0][0] * itemsize, tuple(loops[:0:-1]))


def _starts(first: int, loops: Sequence[tuple[int, int]]) -> Iterator[int]:
    if not loops:
        yield first
        return
    count, stride = loops[0]
    for step in range(count):
        yield from _starts(first + step * stride, loops[1:])

"""What of a box that is copied out of a file lies between two of the file's bytes?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shardkeep.boxes import Box
from shardkeep.plan.reads import Copy


def cut_copy(copy: Copy, start: int, stop: int) -> Iterator[Copy]:
    """Copies of all cells whose bytes lie between two bytes of the file; both between two cells.

    Whole rows come as one copy, so there are few.

    >>> rows = Copy(0, Box((0, 0), (4, 2)), 100, 128, (8, 2))
    >>> [(part.place.start, part.place.stop, part.start) for part in cut_copy(rows, 102, 120)]
    [((1, 0), (3, 2), 108), ((0, 1), (1, 2), 102)]
    """
    if copy.stop <= start or stop <= copy.start:
        return
    if start <= copy.start and copy.stop <= stop:
        yield copy
        return
    rows = rows_between(copy, start, stop)
    if rows.first < rows.last:
        yield rows_of(copy, rows.dim, rows.first, rows.last)
    for row in rows.edges:
        yield from cut_copy(rows_of(copy, rows.dim, row, row + 1), start, stop)


class Rows(NamedTuple):
    """The rows of a copy, along the first dim that has several, between two bytes of the file."""

    dim: int
    first: int
    last: int
    """Behind the last that lies there whole."""
    edges: Sequence[int]
    """Those that lie there in part."""


def rows_between(copy: Copy, start: int, stop: int) -> Rows:
    """Which rows of a copy that is there in part lie between two bytes, whole or in part."""
    a, b, strides = copy.place.start, copy.place.stop, copy.strides
    dim = next(d for d in range(len(a)) if b[d] - a[d] > 1)
    count, stride = b[dim] - a[dim], strides[dim]
    row_nbytes = copy.stop - copy.start - (count - 1) * stride
    first = max(0, -((copy.start - start) // stride))
    last = min(count, (stop - copy.start - row_nbytes) // stride + 1)
    # Of the rows that are met, the outermost may lie there in part.
    top = max(0, (start - copy.start) // stride)
    bottom = min(count, (stop - 1 - copy.start) // stride + 1) - 1
    if first <= top and bottom < last:
        return Rows(dim, first, last, ())
    met = dict.fromkeys((top, bottom)) if top <= bottom else ()
    return Rows(dim, first, last, [row for row in met if not first <= row < last])


def rows_of(copy: Copy, dim: int, first: int, last: int) -> Copy:
    """Some rows of a copy along a dim before which all sides are 1."""
    a, b = copy.place.start, copy.place.stop
    row_nbytes = copy.stop - copy.start - (b[dim] - a[dim] - 1) * copy.strides[dim]
    place = Box((*a[:dim], a[dim] + first, *a[dim + 1 :]), (*b[:dim], a[dim] + last, *b[dim + 1 :]))
    stride = copy.strides[dim]
    begin, end = copy.start + first * stride, copy.start + (last - 1) * stride + row_nbytes
    return Copy(copy.target, place, begin, end, copy.strides)

"""What of a box that is copied out of a file lies between two of the file's bytes?"""

from __future__ import annotations

from collections.abc import Iterator

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
    sides, strides = copy.place.shape, copy.strides
    dim = next(d for d, side in enumerate(sides) if side > 1)
    stride = strides[dim]
    row_nbytes = copy.stop - copy.start - (sides[dim] - 1) * stride
    first = max(0, -((copy.start - start) // stride))
    last = min(sides[dim], (stop - copy.start - row_nbytes) // stride + 1)
    if first < last:
        yield _rows(copy, dim, first, last, row_nbytes)
    # Of the rows that are met, the outermost may lie there in part.
    met = range(
        max(0, (start - copy.start) // stride),
        min(sides[dim], (stop - 1 - copy.start) // stride + 1),
    )
    for row in met[:2] if len(met) < 3 else (met[0], met[-1]):
        if not first <= row < last:
            yield from cut_copy(_rows(copy, dim, row, row + 1, row_nbytes), start, stop)


def _rows(copy: Copy, dim: int, first: int, last: int, row_nbytes: int) -> Copy:
    a, b = copy.place.start, copy.place.stop
    place = Box((*a[:dim], a[dim] + first, *a[dim + 1 :]), (*b[:dim], a[dim] + last, *b[dim + 1 :]))
    stride = copy.strides[dim]
    begin, end = copy.start + first * stride, copy.start + (last - 1) * stride + row_nbytes
    return Copy(copy.target, place, begin, end, copy.strides)

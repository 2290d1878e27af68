"""How are boxes packed into messages of bounded size? Both ends cut alike, by sizes alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shardkeep.boxes import Box


def cut(shape: tuple[int, ...], max_numel: int) -> Iterator[Box]:
    """Boxes of at most `max_numel` cells that tile `shape`, in row-major order.

    >>> [str(box) for box in cut((4, 3), 6)]
    ['[0:2, 0:3]', '[2:4, 0:3]']
    """
    whole = Box.whole(shape)
    if whole.numel <= max_numel:
        yield whole
        return
    row_numel = whole.numel // shape[0]
    rows = max(1, max_numel // row_numel)
    for start in range(0, shape[0], rows):
        stop = min(start + rows, shape[0])
        if stop - start == 1 and row_numel > max_numel:
            for inner in cut(shape[1:], max_numel):
                yield Box((start, *inner.start), (stop, *inner.stop))
        else:
            yield Box((start, *(0,) * (len(shape) - 1)), (stop, *shape[1:]))


def fill(sizes: Iterable[int], max_nbytes: int) -> Iterator[range]:
    """Runs of consecutive items, each of at most `max_nbytes` unless one item alone is larger.

    >>> list(fill([4, 4, 9, 1], 8))
    [range(0, 2), range(2, 3), range(3, 4)]
    """
    first = total = 0
    index = -1
    for index, nbytes in enumerate(sizes):
        if index > first and total + nbytes > max_nbytes:
            yield range(first, index)
            first, total = index, 0
        total += nbytes
    if index >= first:
        yield range(first, index + 1)

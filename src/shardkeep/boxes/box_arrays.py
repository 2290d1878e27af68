"""How do many boxes become arrays?

Bulk work keeps boxes as int64 arrays of shape (ndim, count), so that one dim of all boxes is
contiguous. Modules that import numpy are imported by the functions that need them: planning
for a few boxes must not pay for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, repeat

import numpy as np
from numpy.typing import NDArray

from shardkeep.boxes.box import Box, trusted_box

Ints = NDArray[np.int64]


def coordinates_of(boxes: Sequence[Box], ndim: int) -> tuple[Ints, Ints]:
    """Starts and stops as arrays of shape (ndim, count); all boxes must have `ndim` dims."""
    count = len(boxes)
    return (
        _rows_of([box.start for box in boxes], count, ndim),
        _rows_of([box.stop for box in boxes], count, ndim),
    )


def boxes_of(starts: Ints, stops: Ints) -> Iterable[Box]:
    """The boxes with these coordinates, which must come from boxes themselves."""
    return map(trusted_box, _columns_of(starts), _columns_of(stops))


def _rows_of(places: list[tuple[int, ...]], count: int, ndim: int) -> Ints:
    flat = np.fromiter(chain.from_iterable(places), np.int64, count * ndim)
    return np.ascontiguousarray(flat.reshape(count, ndim).T)


def _columns_of(rows: Ints) -> Iterable[tuple[int, ...]]:
    if not len(rows):
        return repeat((), rows.shape[1])
    values: list[list[int]] = rows.tolist()
    return zip(*values, strict=True)

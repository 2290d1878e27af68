"""Are a box's cells told apart by where their bytes lie in the file?"""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, strategies as st

from shardkeep.boxes import Box
from shardkeep.plan.cuts import cut_copy
from shardkeep.plan.reads import Copy

ITEM = 2


@st.composite
def _copies(draw: st.DrawFn) -> Copy:
    """Any box of a row-major chunk that lies at byte 10 of a file, to any place of a target."""
    shape = draw(st.lists(st.integers(1, 5), max_size=4))
    starts = [draw(st.integers(0, side - 1)) for side in shape]
    stops = [draw(st.integers(a + 1, side)) for a, side in zip(starts, shape, strict=True)]
    strides = [ITEM * math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
    start = 10 + sum(a * stride for a, stride in zip(starts, strides, strict=True))
    last = 10 + sum((b - 1) * stride for b, stride in zip(stops, strides, strict=True))
    shift = [draw(st.integers(0, 3)) for _ in shape]
    sides = [b - a for a, b in zip(starts, stops, strict=True)]
    place = Box(tuple(shift), tuple(s + n for s, n in zip(shift, sides, strict=True)))
    return Copy(7, place, start, last + ITEM, tuple(strides))


def _bytes_by_cell(copy: Copy) -> dict[tuple[int, ...], int]:
    """Where in the file each cell of the target comes from."""
    return {
        tuple(a + i for a, i in zip(copy.place.start, index, strict=True)): copy.start
        + sum(i * stride for i, stride in zip(index, copy.strides, strict=True))
        for index in np.ndindex(*copy.place.shape)
    }


@given(copy=_copies(), data=st.data())
def test_parts_have_the_cells_between_two_bytes_and_no_others(copy: Copy, data: st.DataObject):
    first, last = sorted(data.draw(st.integers(0, 700)) for _ in range(2))
    start, stop = ITEM * first, ITEM * last
    wanted = {
        cell: at for cell, at in _bytes_by_cell(copy).items() if start <= at and at + ITEM <= stop
    }

    parts = list(cut_copy(copy, start, stop))

    found = [cell for part in parts for cell in _bytes_by_cell(part).items()]
    assert dict(found) == wanted
    assert len(found) == len(wanted)
    for part in parts:
        cells = _bytes_by_cell(part).values()
        assert (part.start, part.stop) == (min(cells), max(cells) + ITEM)
        assert part.target == copy.target


def test_rows_come_as_one_copy():
    copy = Copy(0, Box((0, 0), (1000, 8)), 0, 16_000, (16, ITEM))
    assert len(list(cut_copy(copy, 20, 15_990))) == 3

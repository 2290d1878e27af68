"""The strategies make what they promise: tilings that tile, irregular ones among them."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import find, given, strategies as st

from shardkeep.boxes import Box
from shardkeep.testing.box_strategies import random_tiling, shapes, tilings


def counts(shape: Sequence[int], boxes: Sequence[Box]) -> np.ndarray:
    count = np.zeros(shape, np.int64)
    for box in boxes:
        count[box.slices()] += 1
    return count


def can_be_cut_through(boxes: Sequence[Box]) -> bool:
    """Whether some straight cut separates the boxes."""
    ndim = boxes[0].ndim
    places = {(dim, box.start[dim]) for box in boxes for dim in range(ndim) if box.start[dim]}
    return any(all(not box.start[dim] < at < box.stop[dim] for box in boxes) for dim, at in places)


@given(st.data())
def test_tilings_tile(data: st.DataObject):
    shape = data.draw(shapes())
    boxes = data.draw(tilings(shape, 9))

    assert (counts(shape, boxes) == 1).all()
    assert len(boxes) <= 9


def test_some_tilings_are_pinwheels():
    boxes = find(tilings((3, 3), 5), lambda boxes: len(boxes) > 1 and not can_be_cut_through(boxes))

    assert len(boxes) == 5


@pytest.mark.parametrize("shape", [(4000,), (60, 70), (20, 21, 22), (9, 8, 7, 6)])
@pytest.mark.parametrize("count", [1, 2, 3, 1000])
def test_random_tilings_tile_with_the_given_count(shape: tuple[int, ...], count: int):
    boxes = random_tiling(shape, count, np.random.default_rng(count))

    assert (counts(shape, boxes) == 1).all()
    assert len(boxes) == count


def test_random_tilings_stop_at_single_cells():
    assert len(random_tiling((3, 4), 100, np.random.default_rng(0))) == 12
    assert random_tiling((), 5, np.random.default_rng(0)) == [Box((), ())]

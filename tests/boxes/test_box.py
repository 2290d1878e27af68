"""A box is a half-open rectangle, and its arithmetic is that of sets of cells."""

import pickle
from itertools import product

import numpy as np
import pytest
from hypothesis import given, strategies as st

from shardkeep.boxes import Box
from shardkeep.errors import InvalidError
from shardkeep.testing.box_strategies import boxes_in, shapes

pairs = shapes(max_dims=3, max_side=5).flatmap(
    lambda shape: st.tuples(boxes_in(shape), boxes_in(shape))
)
boxes = shapes().flatmap(boxes_in)


def cells(box: Box) -> set[tuple[int, ...]]:
    return set(product(*map(range, box.start, box.stop)))


@given(boxes)
def test_size_and_emptiness_are_those_of_its_cells(box: Box):
    array = np.zeros(box.stop)

    assert array[box.slices()].shape == box.shape
    assert box.numel == len(cells(box))
    assert box.is_empty == (not cells(box))
    assert box.ndim == len(box.shape)


def test_a_0_dim_box_has_one_cell():
    assert Box((), ()).numel == 1
    assert not Box((), ()).is_empty
    assert Box((), ()).overlaps(Box((), ()))


@given(pairs)
def test_intersection_holds_the_shared_cells(pair: tuple[Box, Box]):
    one, other = pair
    shared = one.intersect(other)

    assert (cells(shared) if shared else set()) == cells(one) & cells(other)
    assert one.overlaps(other) == bool(cells(one) & cells(other))
    assert other.intersect(one) == shared


def test_an_empty_box_strictly_inside_another_does_not_overlap_it():
    assert not Box((0,), (4,)).overlaps(Box((2,), (2,)))


@given(pairs)
def test_contains_is_the_subset_relation_for_boxes_with_cells(pair: tuple[Box, Box]):
    one, other = pair

    assert one.contains(one)
    if not other.is_empty:
        assert one.contains(other) == (cells(other) <= cells(one))


def test_an_empty_box_is_contained_where_it_lies():
    whole = Box.whole((4,))

    assert whole.contains(Box((4,), (4,)))
    assert not whole.contains(Box((5,), (5,)))


@given(boxes)
def test_relative_to_undoes_shifted(box: Box):
    by = tuple(range(1, box.ndim + 1))

    assert box.shifted(by).shape == box.shape
    assert box.shifted(by).start == tuple(a + n for a, n in zip(box.start, by, strict=True))
    assert box.shifted(by).relative_to(by) == box
    assert box.shifted((0,) * box.ndim) is box


@given(boxes)
def test_text_and_pickle_give_the_box_back(box: Box):
    assert Box.parse(str(box)) == box
    assert Box.parse(str(box).replace(" ", "")) == box
    assert pickle.loads(pickle.dumps(box)) == box


def test_text_reads_like_slices():
    assert str(Box((0, 0), (128, 4096))) == "[0:128, 0:4096]"
    assert str(Box((), ())) == "[]"


@pytest.mark.parametrize(
    "text",
    [
        *["", "0:1", "[0:1", "[0:1,]", "[0:1,  0:2]", "[-1:2]", "[00:1]", "[0:1]\n", "[0-1]"],
        "[0:" + "9" * 5000 + "]",
        "[0:\u0663]",  # A digit, but not one that a box writes.
    ],
)
def test_text_that_no_box_writes_is_refused(text: str):
    with pytest.raises(InvalidError, match="not a box"):
        Box.parse(text)


@given(pairs)
def test_boxes_sort_by_start_then_stop(pair: tuple[Box, Box]):
    one, other = pair

    assert (one < other) == ((one.start, one.stop) < (other.start, other.stop))


def test_whole_and_sized_start_where_they_say():
    assert Box.whole([2, 3]) == Box((0, 0), (2, 3))
    assert Box.sized([1, 2], [3, 0]) == Box((1, 2), (4, 2))


def test_other_integers_become_plain_ones():
    box = Box(tuple(np.array([1, 2])), [True, 4])  # pyright: ignore[reportArgumentType]

    assert box == Box((1, 2), (1, 4))
    assert {type(a) for a in (*box.start, *box.stop)} == {int}
    assert type(box.stop) is tuple


@pytest.mark.parametrize(
    ("start", "stop", "message"),
    [
        ((0, 0), (1,), "as many starts as stops"),
        ((-1,), (1,), r"got -1:1 in dim 0"),
        ((0, 3), (1, 2), r"got 3:2 in dim 1"),
        ((0,), (2**63,), r"< 2\*\*63"),
        ((0.5,), (1,), "integer coordinates"),
    ],
)
def test_what_is_no_box_is_refused(start: tuple[int, ...], stop: tuple[int, ...], message: str):
    with pytest.raises(InvalidError, match=message):
        Box(start, stop)


@pytest.mark.parametrize("act", ["intersect", "overlaps", "contains"])
def test_boxes_of_other_dims_cannot_be_compared(act: str):
    with pytest.raises(InvalidError, match="dims differ"):
        getattr(Box((0,), (1,)), act)(Box((), ()))


def test_offsets_of_other_dims_are_refused():
    with pytest.raises(InvalidError, match="dims differ"):
        Box((0,), (1,)).shifted((1, 1))
    with pytest.raises(InvalidError, match="dims differ"):
        Box.sized((0,), (1, 1))


def test_a_box_cannot_be_moved_below_0():
    with pytest.raises(InvalidError, match="got -1:0 in dim 0"):
        Box((0,), (1,)).relative_to((1,))

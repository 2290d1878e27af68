"""Byte ranges are the maximal runs of the bytes that a row-major buffer gives to a box."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, strategies as st

from shardkeep.boxes import Box, byte_ranges
from shardkeep.errors import InvalidError
from shardkeep.testing.box_strategies import boxes_in, shapes

places = shapes(max_dims=5, max_side=4).flatmap(
    lambda shape: st.tuples(st.just(shape), boxes_in(shape))
)


def runs_of_bytes(shape: tuple[int, ...], box: Box, itemsize: int) -> list[tuple[int, int]]:
    marked = np.zeros((*shape, itemsize), np.int8)
    marked[box.slices()] = 1
    edges = np.flatnonzero(np.diff(marked.ravel(), prepend=0, append=0))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


@given(places, st.sampled_from([1, 2, 8]))
def test_ranges_are_the_maximal_runs_of_the_box(place: tuple[tuple[int, ...], Box], itemsize: int):
    shape, box = place
    expected = runs_of_bytes(shape, box, itemsize)
    ranges = byte_ranges(shape, box, itemsize)

    assert list(ranges) == expected
    assert ranges.run_count == len(expected)
    assert ranges.total_nbytes == box.numel * itemsize
    assert {b - a for a, b in ranges} <= {ranges.run_nbytes}


@given(places)
def test_no_loop_is_longer_than_it_must_be(place: tuple[tuple[int, ...], Box]):
    shape, box = place
    loops = byte_ranges(shape, box, 4).loops

    if not box.is_empty:
        assert all(count > 1 for count, _ in loops)
        assert all(stride != count * inner for (_, stride), (count, inner) in pairwise(loops))


def test_whole_rows_are_one_run():
    assert list(byte_ranges((4, 8), Box((1, 0), (3, 8)), 2)) == [(16, 48)]


def test_a_0_dim_tensor_is_one_run():
    assert list(byte_ranges((), Box((), ()), 8)) == [(0, 8)]


def test_an_empty_box_has_no_runs():
    ranges = byte_ranges((4, 8), Box((2, 3), (4, 3)), 2)

    assert list(ranges) == []
    assert (ranges.run_count, ranges.total_nbytes) == (0, 0)


def test_a_huge_box_costs_nothing_to_describe():
    ranges = byte_ranges((2**30, 2**20, 8), Box((0, 0, 0), (2**30, 2**20, 4)), 4)

    assert (ranges.run_count, ranges.run_nbytes) == (2**50, 16)
    assert len(ranges.loops) == 1


@pytest.mark.parametrize("box", [Box((0, 0), (5, 1)), Box((0, 9), (0, 9))])
def test_a_box_outside_the_buffer_is_refused(box: Box):
    with pytest.raises(InvalidError, match=r"lies outside shape \(4, 8\)"):
        byte_ranges((4, 8), box, 2)


def test_impossible_arguments_are_refused():
    with pytest.raises(InvalidError, match="itemsize is 0"):
        byte_ranges((4,), Box((0,), (1,)), 0)
    with pytest.raises(InvalidError, match="dims differ"):
        byte_ranges((4,), Box((), ()), 1)

"""Both ends cut boxes into messages alike."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings, strategies as st

from shardkeep.boxes import check_tiling
from shardkeep.plan import cut, fill
from shardkeep.testing.example_counts import examples
from shardkeep.testing.layout_strategies import shapes


@settings(max_examples=examples(100), deadline=None)
@given(shape=shapes(), max_numel=st.integers(1, 60))
def test_cut_tiles_the_shape_with_small_boxes_in_row_major_order(
    shape: tuple[int, ...], max_numel: int
):
    boxes = list(cut(shape, max_numel))

    assert check_tiling(shape, boxes).is_tiling
    assert all(box.numel <= max_numel for box in boxes)
    assert boxes == sorted(boxes)


@settings(max_examples=examples(50), deadline=None)
@given(shape=shapes(), max_numel=st.integers(1, 60))
def test_each_piece_of_a_cut_is_one_piece_of_memory(shape: tuple[int, ...], max_numel: int):
    array = np.zeros(shape)

    assert all(array[box.slices()].flags.c_contiguous for box in cut(shape, max_numel))


def test_a_shape_that_fits_is_not_cut():
    assert [str(box) for box in cut((2, 3), 6)] == ["[0:2, 0:3]"]
    assert [str(box) for box in cut((), 1)] == ["[]"]
    assert [str(box) for box in cut((0, 5), 1)] == ["[0:0, 0:5]"]


def test_a_row_that_is_too_long_is_cut_within():
    assert [str(box) for box in cut((2, 5), 3)] == [
        "[0:1, 0:3]",
        "[0:1, 3:5]",
        "[1:2, 0:3]",
        "[1:2, 3:5]",
    ]


@settings(max_examples=examples(100), deadline=None)
@given(sizes=st.lists(st.integers(0, 20)), max_nbytes=st.integers(1, 30))
def test_fill_takes_all_items_in_order_and_keeps_to_the_limit(sizes: list[int], max_nbytes: int):
    runs = list(fill(sizes, max_nbytes))

    assert [index for run in runs for index in run] == list(range(len(sizes)))
    for run in runs:
        assert sum(sizes[index] for index in run) <= max_nbytes or len(run) == 1


@settings(max_examples=examples(50), deadline=None)
@given(sizes=st.lists(st.integers(1, 20), min_size=2), max_nbytes=st.integers(1, 30))
def test_fill_starts_a_message_only_when_the_last_one_is_full(sizes: list[int], max_nbytes: int):
    runs = list(fill(sizes, max_nbytes))

    for run, following in pairwise(runs):
        assert sum(sizes[index] for index in run) + sizes[following[0]] > max_nbytes

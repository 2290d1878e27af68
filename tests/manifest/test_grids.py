"""Chunks tile their tensor, and those that a box meets are found without a look at the others."""

import time

import numpy as np
import pytest
from hypothesis import given, strategies as st

from shardkeep.boxes import Box, Grid, check_tiling, nested_split
from shardkeep.errors import InvalidError
from shardkeep.manifest import BoxGrid, ChunkGrid, Runs, SplitGrid
from shardkeep.manifest.pieces import pieces, pieces_meeting
from shardkeep.testing.box_strategies import boxes_in, random_tiling, shapes
from tests.manifest.examples import grids

FILES = 7
counts = st.lists(st.integers(1, 4), max_size=3)


@given(st.integers(0, 20), counts, st.integers(0, 22), st.integers(0, 22))
def test_pieces_are_those_of_the_chunk_rule(n: int, splits: list[int], start: int, stop: int):
    every = [(i, a, b) for i, (a, b) in enumerate(nested_split(n, splits)) if a < b]

    assert list(pieces(n, splits)) == every
    assert list(pieces_meeting(n, splits, start, stop)) == [
        piece for piece in every if max(start, piece[1]) < min(stop, piece[2])
    ]


@st.composite
def divided(draw: st.DrawFn) -> tuple[tuple[int, ...], ChunkGrid]:
    shape = draw(shapes(min_side=1))
    return shape, draw(grids(shape, FILES))


@given(divided())
def test_chunks_tile_the_tensor(case: tuple[tuple[int, ...], ChunkGrid]):
    shape, grid = case
    boxes = [box for box, _ in grid.chunks(shape)]

    assert check_tiling(shape, boxes).is_tiling
    assert not any(box.is_empty for box in boxes)


@given(st.data(), divided())
def test_chunks_meeting_a_box_are_those_that_share_cells(
    data: st.DataObject, case: tuple[tuple[int, ...], ChunkGrid]
):
    shape, grid = case
    box = data.draw(boxes_in([n + 2 for n in shape]))

    assert grid.chunks_meeting(shape, box) == [
        chunk for chunk in grid.chunks(shape) if chunk[0].overlaps(box)
    ]


@given(shapes(), st.data())
def test_cells_without_content_count_but_are_no_chunks(shape, data: st.DataObject):
    splits = tuple([tuple(data.draw(st.lists(st.integers(1, 3), max_size=2))) for _ in shape])
    cells = list(Grid.split(shape, splits).cells())
    grid = SplitGrid(splits, Runs.of(range(len(cells))))

    assert grid.cell_count == len(cells)
    assert list(grid.chunks(shape)) == [
        (box, index) for index, box in enumerate(cells) if not box.is_empty
    ]


def test_many_listed_boxes_are_searched_as_arrays():
    shape = (400, 300)
    boxes = random_tiling(shape, 500, np.random.default_rng(0))
    grid = BoxGrid(tuple(boxes), Runs.of([index % FILES for index in range(len(boxes))]))
    box = Box((17, 40), (200, 90))

    assert grid.chunks_meeting(shape, box) == [
        (chunk, index % FILES) for index, chunk in enumerate(boxes) if chunk.overlaps(box)
    ]
    assert grid.chunks_meeting(shape, Box((5, 5), (5, 9))) == []


def test_a_grid_of_very_many_cells_answers_at_once():
    count = 2**24
    grid = SplitGrid(((2**12, 2**6), (2**6,)), Runs(((0, 1, count),)))
    shape = (2**40, 2**20)
    start = time.process_time()

    (chunk,) = grid.chunks_meeting(shape, Box((2**40 - 1, 2**20 - 1), (2**40, 2**20)))
    assert chunk == (Box((2**40 - 2**22, 2**20 - 2**14), shape), count - 1)
    assert next(grid.chunks(shape)) == (Box((0, 0), (2**22, 2**14)), 0)
    assert time.process_time() - start < 0.5


def test_other_dims_are_refused():
    grid = SplitGrid(((2,),), Runs.of([0, 1]))
    listed = BoxGrid((Box((0,), (4,)),), Runs.of([0]))

    with pytest.raises(InvalidError, match="has 2 dims, the grid 1"):
        grid.chunks_meeting((4,), Box((0, 0), (1, 1)))
    with pytest.raises(InvalidError, match="has 2 dims, the grid 1"):
        list(grid.chunks((4, 4)))
    with pytest.raises(InvalidError, match="has 2 dims, the tensor 1"):
        listed.chunks_meeting((4,), Box((0, 0), (1, 1)))

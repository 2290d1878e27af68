"""A grid's cells tile its shape, and are found by arithmetic."""

import pytest
from hypothesis import given, strategies as st

from shardkeep.boxes import Box, Grid, ceil_split, check_tiling
from shardkeep.errors import InvalidError
from shardkeep.testing.box_strategies import boxes_in


@st.composite
def grids(draw: st.DrawFn) -> Grid:
    """Grids of up to 3 dims, with empty cells where a dim has fewer cells than parts."""
    shape = draw(st.lists(st.integers(0, 9), max_size=3))
    counts = [draw(st.lists(st.integers(1, 4), max_size=2)) for _ in shape]
    return Grid.split(shape, counts)


@given(grids())
def test_cells_tile_the_shape(grid: Grid):
    assert check_tiling(grid.shape, list(grid.cells())).is_tiling


@given(grids())
def test_a_cell_is_found_by_its_row_major_index(grid: Grid):
    assert [grid.cell(index) for index in range(grid.cell_count)] == list(grid.cells())


@given(st.data(), grids())
def test_cells_meeting_a_box_are_those_that_share_cells(data: st.DataObject, grid: Grid):
    box = data.draw(boxes_in([n + 2 for n in grid.shape]))
    shared = [(index, cell.intersect(box)) for index, cell in enumerate(grid.cells())]

    assert grid.cells_meeting(box) == [(index, part) for index, part in shared if part]


def test_split_uses_the_chunk_rule_in_every_dim():
    grid = Grid.split((5, 6), [[4], [3]])

    assert grid.shape == (5, 6)
    assert grid.counts == (4, 3)
    assert list(grid.cells()) == [
        Box((a, c), (b, d)) for a, b in ceil_split(5, 4) for c, d in ceil_split(6, 3)
    ]


def test_an_empty_cell_between_others_meets_nothing():
    grid = Grid.split((5,), [[2, 4]])

    assert grid.cuts == ((0, 1, 2, 3, 3, 4, 5, 5, 5),)
    assert [index for index, _ in grid.cells_meeting(Box((1,), (5,)))] == [1, 2, 4, 5]


def test_a_0_dim_grid_has_one_cell():
    grid = Grid.split((), [])

    assert list(grid.cells()) == [Box((), ())]
    assert grid.cells_meeting(Box((), ())) == [(0, Box((), ()))]


def test_a_grid_of_very_many_cells_answers_at_once():
    grid = Grid.split((2**20, 2**20), [[2**10, 2**6], [2**16]])

    assert grid.cell_count == 2**32
    assert grid.cell(2**32 - 1) == Box((2**20 - 16, 2**20 - 16), (2**20, 2**20))
    assert grid.cells_meeting(Box((17, 31), (18, 33))) == [
        (2**16 + 1, Box((17, 31), (18, 32))),
        (2**16 + 2, Box((17, 32), (18, 33))),
    ]


@pytest.mark.parametrize("cuts", [(), (0,), (1, 2), (0, 3, 2)])
def test_cuts_must_rise_from_0(cuts: tuple[int, ...]):
    with pytest.raises(InvalidError, match="cuts must rise from 0"):
        Grid((cuts,))


def test_what_is_not_there_is_refused():
    grid = Grid.split((4,), [[2]])

    with pytest.raises(InvalidError, match="cell 2 is not one of 2 cells"):
        grid.cell(2)
    with pytest.raises(InvalidError, match="cell -1 is not"):
        grid.cell(-1)
    with pytest.raises(InvalidError, match="has 0 dims, the grid has 1"):
        grid.cells_meeting(Box((), ()))
    with pytest.raises(InvalidError, match="got counts for 1"):
        Grid.split((4, 4), [[2]])

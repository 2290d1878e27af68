"""The pictures in pages and demo show who holds what."""

import pytest

from shardkeep import Box, Layout, Mesh, Replicate, Split, draw_layout

MESH = Mesh((2, 2), (0, 1, 2, 3))


def test_each_cell_shows_its_rank():
    layout = Layout.grid((2, 6), (2, 3))
    assert draw_layout(layout) == "001122\n334455"


def test_a_tensor_of_one_dim_is_one_line():
    layout = Layout.on_mesh((8,), MESH, (Split(0, interleave=2), Split(0)))
    assert draw_layout(layout) == "00221133"


def test_a_scalar_is_one_cell():
    assert draw_layout(Layout.replicated((), [3])) == "3"


def test_cells_of_several_ranks_and_of_none_have_their_marks():
    assert draw_layout(Layout.on_mesh((2, 4), MESH, (Replicate(), Split(1)))) == "++++\n++++"
    assert draw_layout(Layout.listed((2, 4), [(1, Box((0, 1), (2, 3)))])) == ".11.\n.11."


def test_further_dims_are_shown_at_index_0():
    assert draw_layout(Layout.chunked((2, 4, 6), 2, [5, 6])) == "5555\n5555"


def test_ranks_from_10_on_are_letters():
    assert draw_layout(Layout.chunked((4,), 0, [9, 10, 61, 62])) == "9aZ0"


def test_what_is_larger_than_the_map_is_drawn_smaller():
    layout = Layout.grid((1000, 3000), (2, 3))
    assert draw_layout(layout, max_rows=4, max_columns=6) == "\n".join(
        ["001122"] * 2 + ["334455"] * 2
    )


@pytest.mark.parametrize("shape", [(0,), (0, 3)])
def test_a_tensor_without_rows_has_no_picture(shape):
    assert draw_layout(Layout.chunked(shape, 0, [0, 1])) == ""

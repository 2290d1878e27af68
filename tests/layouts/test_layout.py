"""Layouts that are made by hand: chunks, grids, listed boxes, replicas."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from shardkeep.boxes import Box
from shardkeep.errors import CoverError, LayoutError
from shardkeep.layouts import Layout, ListedLayout, Part
from shardkeep.testing.example_counts import examples
from shardkeep.testing.layout_strategies import Owned, layouts, owned_tilings

TOP, BOTTOM = Box((0, 0), (2, 4)), Box((2, 0), (4, 4))


def test_replicated_gives_every_rank_the_whole():
    layout = Layout.replicated((2, 4), [3, 1])

    assert layout.ranks == (1, 3)
    assert [part.rank for part in layout.holders[TOP]] == [1, 3]
    assert layout.has_replicas


def test_a_layout_of_one_holder_has_no_replicas():
    assert not Layout.replicated((2, 4), [3]).has_replicas


def test_a_grid_gives_its_cells_to_ranks_in_row_major_order():
    layout = Layout.grid((4, 5), (2, 2), [7, 6, 5, 4])

    assert layout.boxes_of(7) == (Box((0, 0), (2, 3)),)
    assert layout.boxes_of(6) == (Box((0, 3), (2, 5)),)
    assert layout.boxes_of(4) == (Box((2, 3), (4, 5)),)


def test_a_grid_counts_its_ranks_from_0_by_default():
    assert Layout.grid((4, 4), (1, 3)) == Layout.grid((4, 4), (1, 3), [0, 1, 2])
    assert Layout.grid((), ()).boxes_of(0) == (Box((), ()),)


def test_a_grid_needs_a_rank_for_each_cell():
    with pytest.raises(LayoutError, match=r"needs 4 ranks, got 3"):
        Layout.grid((4, 4), (2, 2), [0, 1, 2])


def test_a_grid_cuts_only_dims_that_are_there():
    with pytest.raises(LayoutError, match=r"splits a dim that shape \(4,\) lacks"):
        Layout.grid((4,), (2, 2))


def test_listed_boxes_are_local_tensors_of_their_own():
    layout = Layout.listed((4, 4), [(1, TOP), (1, BOTTOM)])

    assert layout.parts_of(1) == (
        Part(TOP, 1, 0, Box.whole((2, 4))),
        Part(BOTTOM, 1, 1, Box.whole((2, 4))),
    )
    assert layout.buffer_shapes_of(1) == ((2, 4), (2, 4))


def test_listed_empty_boxes_have_memory_but_no_part():
    layout = Layout.listed((4, 4), [(0, Box((4, 0), (4, 4))), (0, Box.whole((4, 4)))])

    assert [part.buffer for part in layout.parts_of(0)] == [1]
    assert layout.buffer_shapes_of(0) == ((0, 4), (4, 4))
    layout.require_complete()


def test_listed_equal_boxes_are_replicas():
    layout = Layout.listed((4, 4), [(0, TOP), (2, TOP), (1, BOTTOM)])

    assert [part.rank for part in layout.holders[TOP]] == [0, 2]
    assert layout.has_replicas
    layout.require_complete()


def test_listed_boxes_that_overlap_are_refused_with_the_place_and_the_ranks():
    with pytest.raises(
        LayoutError,
        match=r"overlap at \[1:2, 0:4\]: \[0:2, 0:4\] of rank 0 and \[1:4, 0:4\] of rank 3",
    ):
        Layout.listed((4, 4), [(0, TOP), (3, Box((1, 0), (4, 4)))])


@pytest.mark.parametrize("box", [Box((0, 0), (5, 4)), Box((0,), (2,))])
def test_listed_boxes_lie_inside_the_shape(box: Box):
    with pytest.raises(
        LayoutError, match=r"rank 2's box .* does not lie inside the shape \(4, 4\)"
    ):
        Layout.listed((4, 4), [(2, box)])


def test_a_gap_is_named():
    layout = Layout.listed((4, 4), [(0, TOP)])

    with pytest.raises(CoverError, match=r"my tensor is not tiled.*no box holds \[2:4, 0:4\]"):
        layout.require_complete("my tensor")


def test_wishes_may_overlap_and_leave_gaps():
    wishes = ListedLayout.of_wishes((4, 4), [(0, TOP), (1, Box((1, 0), (2, 2)))])

    assert wishes.boxes_of(1) == (Box((1, 0), (2, 2)),)


def test_ranks_that_hold_nothing_may_take_part():
    layout = Layout.listed((4, 4), [(1, Box.whole((4, 4)))], ranks=[0, 1, 2])

    assert layout.ranks == (0, 1, 2)
    assert layout.describe().splitlines() == [
        "rank 0: nothing",
        "rank 1: [0:4, 0:4]",
        "rank 2: nothing",
    ]


@settings(max_examples=examples(60), deadline=None)
@given(owned=owned_tilings((5, 4), range(4), replicas=True))
def test_the_order_of_different_ranks_boxes_does_not_matter(owned: Owned):
    one = Layout.listed((5, 4), owned)
    # Sorting by rank is stable: what one rank has stays in order.
    other = Layout.listed((5, 4), sorted(owned, key=lambda pair: pair[0]))

    assert one == other
    assert hash(one) == hash(other)


def test_the_order_of_a_ranks_own_boxes_matters():
    """They are numbered: memory is found by these numbers."""
    assert Layout.listed((4, 4), [(0, TOP), (0, BOTTOM)]) != Layout.listed(
        (4, 4), [(0, BOTTOM), (0, TOP)]
    )


def test_listed_boxes_of_one_shape_share_their_place():
    layout = Layout.listed((4, 4), [(0, TOP), (1, BOTTOM)])

    first, second = layout.parts()
    assert first.place is second.place
    assert layout.buffer_shapes_of(0)[0] is layout.buffer_shapes_of(1)[0]


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_layouts_have_the_same_digest_if_the_same_ranks_hold_the_same_boxes(data: st.DataObject):
    one, other = data.draw(layouts((5, 4), range(4))), data.draw(layouts((5, 4), range(4)))

    assert (one.digest == other.digest) == (list(one.parts()) == list(other.parts()))


def test_a_digest_is_the_same_in_every_process():
    assert Layout.chunked((4, 4), 0, [1, 0]).digest == "0fa583ef7f82e21c"


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_every_view_of_a_layout_tells_the_same(data: st.DataObject):
    layout = data.draw(layouts((5, 4), range(4)))

    parts = list(layout.parts())
    assert parts == [part for rank in layout.ranks for part in layout.parts_of(rank)]
    assert parts == sorted(parts, key=lambda part: part.rank)
    assert sorted(layout.ranks) == list(layout.ranks)
    for box, held in layout.holders.items():
        assert list(held) == [part for part in parts if part.box == box]
    for rank in layout.ranks:
        assert layout.boxes_of(rank) == tuple(part.box for part in layout.parts_of(rank))

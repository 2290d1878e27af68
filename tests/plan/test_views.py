"""What ranks know of a state: written down, merged, and refused where it does not fit."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from shardkeep.boxes import Box, check_tiling
from shardkeep.errors import RanksDisagreeError
from shardkeep.layouts import Layout, Mesh, Replicate, Split
from shardkeep.plan import (
    Entry,
    decode_view,
    digest_view,
    encode_view,
    held_layout,
    holders_of,
    source_layouts,
)
from shardkeep.testing.example_counts import examples
from shardkeep.testing.layout_strategies import layouts, shapes


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    shape = draw(shapes())
    layout = draw(st.one_of(st.none(), layouts(shape, range(5))))
    return Entry(draw(st.sampled_from(["float32", "bool"])), shape, layout)


@settings(max_examples=examples(30), deadline=None)
@given(view=st.dictionaries(st.text(max_size=5), entries(), max_size=3))
def test_a_view_comes_back_as_it_was_encoded(view: dict[str, Entry]):
    encoded = encode_view(view)

    assert decode_view(encoded) == view
    assert len(digest_view(encoded)) == 16


def test_different_views_have_different_digests():
    layout = Layout.chunked((4, 4), 0, [0, 1])
    views = [
        {},
        {"a": Entry("float32", (4, 4), None)},
        {"b": Entry("float32", (4, 4), None)},
        {"a": Entry("float32", (4, 4), layout)},
        {"a": Entry("float64", (4, 4), layout)},
        {"a": Entry("float32", (4, 4), Layout.chunked((4, 4), 1, [0, 1]))},
        {"a": Entry("float32", (4, 4), Layout.chunked((4, 4), 0, [1, 0]))},
    ]

    assert len({digest_view(encode_view(view)) for view in views}) == len(views)


def test_holders_are_the_distinct_entries_with_their_ranks():
    row, column = (Entry("float32", (4,), Layout.chunked((4,), 0, ranks)) for ranks in ([0], [1]))
    views = [({"a": row}, [0, 2]), ({"a": column}, [1]), ({}, [3]), ({"a": row, "b": row}, [4])]

    assert holders_of("a", views) == [(row, [0, 2, 4]), (column, [1])]
    assert holders_of("c", views) == []


@pytest.mark.parametrize(
    "other", [Entry("float64", (4,), None), Entry("float32", (5,), None)], ids=["dtype", "shape"]
)
def test_a_key_with_two_meanings_is_refused_with_its_ranks(other: Entry):
    views = [({"a": Entry("float32", (4,), None)}, [0, 1]), ({"a": other}, [2])]

    with pytest.raises(
        RanksDisagreeError, match=r"'a' is float32 of shape \(4,\) on ranks 0-1, but .* on rank 2"
    ):
        holders_of("a", views)


def test_an_entry_without_layout_is_whole_on_each_rank_that_has_it():
    holders = [(Entry("float32", (4,), None), [1, 3])]

    assert held_layout(holders) == Layout.replicated((4,), [1, 3])
    assert source_layouts("a", holders) == (Layout.replicated((4,), [1, 3]),)


def test_a_complete_entry_is_a_source_by_itself():
    """Each tensor-parallel rank's norm is sharded over a data-parallel group of its own."""
    groups = [Layout.chunked((4,), 0, [0, 2]), Layout.chunked((4,), 0, [1, 3])]
    holders = [
        (Entry("float32", (4,), groups[0]), [0, 2]),
        (Entry("float32", (4,), groups[1]), [1, 3]),
    ]

    assert source_layouts("norm", holders) == tuple(groups)
    together = held_layout(holders)
    assert [part.rank for part in together.holders[Box((0,), (2,))]] == [0, 1]
    assert [part.rank for part in together.holders[Box((2,), (4,))]] == [2, 3]


def test_entries_that_tile_together_are_one_source():
    whole = Layout.chunked((4,), 0, [0, 1])
    holders = [
        (Entry("float32", (4,), Layout.listed((4,), [(0, Box((0,), (2,)))])), [0]),
        (Entry("float32", (4,), Layout.listed((4,), [(1, Box((2,), (4,)))])), [1]),
    ]

    (source,) = source_layouts("w", holders)

    assert source.boxes_of(0) == whole.boxes_of(0)
    assert source.boxes_of(1) == whole.boxes_of(1)


def test_a_mesh_of_which_a_rank_is_missing_is_no_source():
    layout = Layout.on_mesh((4,), Mesh.line([0, 1]), [Split(0)])

    with pytest.raises(RanksDisagreeError, match=r"'w' does not make up.*no box holds \[2:4\]"):
        source_layouts("w", [(Entry("float32", (4,), layout), [0])])


def test_a_replica_of_which_a_rank_is_missing_is_still_a_source():
    layout = Layout.on_mesh((4,), Mesh.line([0, 1]), [Replicate()])

    (source,) = source_layouts("w", [(Entry("float32", (4,), layout), [0])])

    assert check_tiling((4,), list(source.holders)).is_tiling
    assert source.ranks == (0,)


def test_boxes_of_different_views_that_overlap_are_refused():
    holders = [
        (Entry("float32", (4,), Layout.listed((4,), [(0, Box((0,), (3,)))])), [0]),
        (Entry("float32", (4,), Layout.listed((4,), [(1, Box((2,), (4,)))])), [1]),
    ]

    with pytest.raises(RanksDisagreeError, match=r"share \[2:3\]"):
        source_layouts("w", holders)

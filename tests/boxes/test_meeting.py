"""Boxes meet where they share cells, however many there are."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, strategies as st

from shardkeep.boxes import Box, Meeting, find_overlaps, joins, meeting, meetings
from shardkeep.errors import InvalidError
from shardkeep.testing.box_strategies import boxes_in, random_tiling, shapes, tilings

shaped = shapes(max_dims=3, max_side=6)
box_lists = shaped.flatmap(
    lambda shape: st.tuples(*[st.lists(boxes_in(shape), max_size=12) for _ in range(2)])
)
tiling_pairs = shaped.flatmap(lambda shape: st.tuples(tilings(shape), tilings(shape)))


@contextmanager
def cuts_from(pair_count: int) -> Iterator[None]:
    """Use arrays always, and cut space until `pair_count` pairs are left."""
    with (
        mock.patch.object(meeting, "_FEW_PAIRS", 0),
        mock.patch.object(joins, "_FEW_PAIRS", pair_count),
        mock.patch.object(joins, "_MAX_PAIRS", 4),
    ):
        yield


def shared_by_painting(one: Box, other: Box) -> Box | None:
    painted = np.zeros(np.maximum(one.stop, other.stop).astype(int), np.int8)
    painted[one.slices()] += 1
    painted[other.slices()] += 1
    cells = np.argwhere(painted == 2)
    if not len(cells):
        return None
    return Box(tuple(cells.min(axis=0).tolist()), tuple((cells.max(axis=0) + 1).tolist()))


def meetings_by_painting(sources: Sequence[Box], wanted: Sequence[Box]) -> list[Meeting]:
    shared = [
        (i, j, shared_by_painting(one, other))
        for j, other in enumerate(wanted)
        for i, one in enumerate(sources)
    ]
    return [(i, j, box) for i, j, box in shared if box]


@given(box_lists | tiling_pairs, st.sampled_from([0, 1, 8]))
def test_meetings_are_all_shared_cells_ordered_by_wanted_then_source(
    pair: tuple[list[Box], list[Box]], pair_count: int
):
    expected = meetings_by_painting(*pair)

    assert meetings(*pair) == expected
    with cuts_from(pair_count):
        assert meetings(*pair) == expected


@given(box_lists | tiling_pairs, st.sampled_from([0, 1, 8]))
def test_overlaps_are_the_meetings_of_different_boxes(
    pair: tuple[list[Box], list[Box]], pair_count: int
):
    boxes = [*pair[0], *pair[1]]
    expected = sorted((i, j, box) for i, j, box in meetings_by_painting(boxes, boxes) if i < j)

    assert find_overlaps(boxes, limit=10**6) == tuple(expected)
    with cuts_from(pair_count):
        assert find_overlaps(boxes, limit=10**6) == tuple(expected)
        some = find_overlaps(boxes, limit=2)
    assert len(some) == min(2, len(expected))
    assert set(some) <= set(expected)


@pytest.mark.parametrize("shape", [(10**6,), (1000, 1000), (90, 100, 110)])
def test_large_tilings_meet_in_all_their_cells(shape: tuple[int, ...]):
    rng = np.random.default_rng(7)
    one, other = random_tiling(shape, 1500, rng), random_tiling(shape, 1500, rng)
    found = meetings(one, other)

    assert sum(shared.numel for _, _, shared in found) == np.prod(shape)
    assert all(one[i].intersect(other[j]) == shared for i, j, shared in found)
    assert [(j, i) for i, j, _ in found] == sorted({(j, i) for i, j, _ in found})
    assert find_overlaps(one) == ()


def stripes(count: int, shift: int) -> list[Box]:
    return [Box((4 * i + shift, 0), (4 * i + shift + 4, 9)) for i in range(count)]


def columns_and_rows(count: int) -> list[Box]:
    rows = [Box((i, 0), (i + 1, count)) for i in range(count)]
    return rows + [Box((0, i), (count, i + 1)) for i in range(count)]


def diagonal(count: int) -> list[Box]:
    return [Box((i, i), (i + 1, i + 1)) for i in range(count)]


@pytest.mark.parametrize(
    ("sources", "wanted", "found"),
    [
        (stripes(2000, 0), stripes(2000, 2), 3999),
        (columns_and_rows(1000), diagonal(2000), 2000),
    ],
    ids=["stripes", "rows and columns"],
)
def test_far_fewer_pairs_are_compared_than_there_are(
    sources: list[Box], wanted: list[Box], found: int
):
    with mock.patch.object(joins, "_compared", wraps=joins._compared) as compared:
        assert len(meetings(sources, wanted)) == found

    pair_count = sum(call.args[0].pair_count for call in compared.call_args_list)
    assert pair_count < len(sources) * len(wanted) / 10


def test_the_first_overlaps_of_many_equal_boxes_are_found_without_comparing_all():
    with mock.patch.object(joins, "_MAX_PAIRS", 2**12):
        found = find_overlaps([Box((0, 0), (1, 1))] * 3000, limit=3)

    assert len(found) == 3
    assert all(i < j and shared == Box((0, 0), (1, 1)) for i, j, shared in found)


@pytest.mark.parametrize("count", [3, 40])
def test_0_dim_boxes_all_meet(count: int):
    boxes = [Box((), ())] * count

    assert len(meetings(boxes, boxes)) == count**2
    assert len(find_overlaps(boxes, limit=10**6)) == count * (count - 1) // 2


def test_nothing_meets_nothing():
    assert meetings([], []) == []
    assert meetings([Box((0,), (1,))], []) == []
    assert find_overlaps([]) == ()


def test_impossible_arguments_are_refused():
    with pytest.raises(InvalidError, match=r"equally many dims, got \[0, 1\]"):
        meetings([Box((), ())], [Box((0,), (1,))])
    with pytest.raises(InvalidError, match=r"equally many dims, got \[0, 1\]"):
        find_overlaps([Box((), ()), Box((0,), (1,))])
    with pytest.raises(InvalidError, match="limit is 0"):
        find_overlaps([], limit=0)

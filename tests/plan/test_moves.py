"""Moves are carried out by hand on NumPy arrays, for all ranks, without any communication."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from shardkeep.boxes import Box
from shardkeep.errors import CoverError
from shardkeep.layouts import Layout, ListedLayout, Mesh, Replicate, Split
from shardkeep.plan import Move, RankMoves, plan_moves
from shardkeep.testing.box_strategies import boxes_in
from shardkeep.testing.example_counts import examples
from shardkeep.testing.layout_strategies import Array, held_by, layouts, shapes

RANKS = range(7)


@dataclass(frozen=True)
class Case:
    """Where an array lies, and where it is to go."""

    sources: tuple[Layout, ...]
    target: Layout
    array: Array

    def plans(self) -> dict[int, RankMoves]:
        return {rank: plan_moves(self.sources, self.target, rank) for rank in RANKS}

    @cached_property
    def held(self) -> dict[int, list[Array]]:
        """Each rank's memory before: it takes part in at most one of the sources."""
        return {
            rank: held_by(source, rank, self.array)
            for source in self.sources
            for rank in source.ranks
        }


@st.composite
def cases(draw: st.DrawFn) -> list[Case]:
    """Every way from three kinds of sources to three targets, for one shape."""
    shape = draw(shapes())
    array = np.arange(1, np.prod(shape, dtype=int) + 1).reshape(shape)
    targets = [*(draw(layouts(shape, RANKS)) for _ in range(2)), draw(_wishes(shape))]
    origins = draw(_origins(shape))
    return [Case(sources, target, array) for sources in origins for target in targets]


@st.composite
def _origins(draw: st.DrawFn, shape: tuple[int, ...]) -> list[tuple[Layout, ...]]:
    """Sources that are complete by themselves: one, another one, and both on ranks of their own."""
    ranks = draw(st.permutations(RANKS))
    one, other = draw(layouts(shape, ranks[:3])), draw(layouts(shape, ranks[3:]))
    return [(one,), (other,), (one, other)]


@st.composite
def _wishes(draw: st.DrawFn, shape: tuple[int, ...]) -> Layout:
    """What ranks ask for: boxes that overlap and leave gaps."""
    wishes = st.tuples(st.sampled_from(RANKS), boxes_in(shape))
    return ListedLayout.of_wishes(shape, draw(st.lists(wishes, max_size=5)))


# 200 examples of 9 cases each.
@settings(max_examples=examples(200), deadline=None)
@given(cases=cases())
def test_moves_from_any_layout_fill_any_other(cases: list[Case]):
    for case in cases:
        plans = case.plans()
        _require_filled(case, plans)
        _require_pairs(plans)
        _require_no_needless_travel(case, plans)


def _require_filled(case: Case, plans: dict[int, RankMoves]) -> None:
    """Every cell of the target is written once, with the right value."""
    for rank in RANKS:
        buffers = [np.zeros(shape, int) for shape in case.target.buffer_shapes_of(rank)]
        for move in (*plans[rank].copies, *plans[rank].receives):
            assert move.target_rank == rank
            box = case.held[move.source_rank][move.source_buffer][move.source_place.slices()]
            place = move.target_place.slices()
            assert box.shape == move.target_place.shape
            assert not buffers[move.target_buffer][place].any(), "a cell is written twice"
            buffers[move.target_buffer][place] = box
        expected = held_by(case.target, rank, case.array)
        assert [buffer.tolist() for buffer in buffers] == [e.tolist() for e in expected]


def _require_pairs(plans: dict[int, RankMoves]) -> None:
    """Each send has one receive, in the same order on both sides."""
    for one in RANKS:
        for other in RANKS:
            sent = [move for move in plans[one].sends if move.target_rank == other]
            received = [move for move in plans[other].receives if move.source_rank == one]
            assert sent == received
        assert all(move.source_rank == one for move in plans[one].sends)
        assert _is_sorted([move.target_rank for move in plans[one].sends])
        assert _is_sorted([move.source_rank for move in plans[one].receives])


def _is_sorted(numbers: Sequence[int]) -> bool:
    return list(numbers) == sorted(numbers)


def _require_no_needless_travel(case: Case, plans: dict[int, RankMoves]) -> None:
    """Nothing travels that the target holds already, and no message is empty."""
    for rank, plan in plans.items():
        mine = {int(cell) for buffer in case.held.get(rank, []) for cell in buffer.flat}
        for move in plan.receives:
            assert move.source_rank != rank
            assert move.numel > 0
            assert mine.isdisjoint(_cells(case, move))
        assert all(move.source_rank == move.target_rank == rank for move in plan.copies)


def _cells(case: Case, move: Move) -> list[int]:
    held = case.held[move.source_rank][move.source_buffer]
    return held[move.source_place.slices()].flatten().tolist()


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_replicas_take_turns_in_serving_any_set_of_ranks(data: st.DataObject):
    ranks = data.draw(st.permutations(RANKS))
    holders = ranks[: data.draw(st.integers(1, 4))]
    wanting = data.draw(st.lists(st.sampled_from(RANKS), min_size=1, unique=True))

    sent = _sent_cells(Layout.replicated((6,), holders), Layout.replicated((6,), wanting))

    assert sum(sent.values()) == 6 * len(set(wanting).difference(holders))
    assert max(sent[rank] for rank in holders) - min(sent[rank] for rank in holders) <= 6


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_replicas_take_turns_in_serving_chunks(data: st.DataObject):
    ranks = data.draw(st.permutations(range(12)))
    count = data.draw(st.integers(1, 4))
    wanting = ranks[count : count + data.draw(st.integers(1, 8))]

    rows = len(wanting) * 2
    sent = _sent_cells(
        Layout.replicated((rows,), ranks[:count]), Layout.chunked((rows,), 0, wanting)
    )

    assert max(sent[rank] for rank in ranks[:count]) - min(sent[r] for r in ranks[:count]) <= 2


@pytest.mark.parametrize("replicas_first", [True, False])
@pytest.mark.parametrize("copies", [2, 3])
def test_hybrid_shards_are_served_by_all_holders_alike(copies: int, replicas_first: bool):
    """From an HSDP job to another: the ranks that want a box are every second one."""
    shape, placements = ((copies, 2), (Replicate(), Split(0)))
    if not replicas_first:
        shape, placements = shape[::-1], placements[::-1]
    size = 2 * copies
    source = Layout.on_mesh((8,), Mesh(shape, tuple(range(size))), placements)
    target = Layout.on_mesh((8,), Mesh(shape, tuple(range(size, 2 * size))), placements)

    assert _sent_cells(source, target) == dict.fromkeys(range(size), 4)


def _sent_cells(source: Layout, target: Layout) -> Counter[int]:
    sent: Counter[int] = Counter()
    for rank in {*source.ranks, *target.ranks}:
        for move in plan_moves((source,), target, rank).sends:
            sent[rank] += move.numel
    return sent


def test_a_rank_reads_from_the_first_source_that_it_takes_part_in():
    left, right = Layout.replicated((4,), [0, 1]), Layout.replicated((4,), [2, 3])
    target = Layout.replicated((4,), range(4))

    for rank in range(4):
        plan = plan_moves((left, right), target, rank)
        assert [move.source_rank for move in plan.copies] == [rank]
        assert not plan.sends
        assert not plan.receives


def test_ranks_outside_every_source_are_spread_over_the_sources():
    left, right = Layout.replicated((4,), [0]), Layout.replicated((4,), [1])
    target = Layout.replicated((4,), range(2, 6))

    assert len(plan_moves((left, right), target, 0).sends) == 2
    assert len(plan_moves((left, right), target, 1).sends) == 2


def test_a_source_that_is_listed_twice_sends_once():
    source = Layout.replicated((4,), [0])
    twin = Layout.replicated((4,), [0])
    target = Layout.replicated((4,), [1, 2])

    once = plan_moves((source,), target, 0)
    assert plan_moves((source, source), target, 0) == once
    assert plan_moves((source, twin), target, 0) == once
    assert len(once.sends) == 2


def test_a_gap_of_the_source_is_refused_where_it_is_wanted():
    source = Layout.listed((4,), [(0, Box((0,), (2,)))])

    with pytest.raises(CoverError, match=r"rank 1 wants \[1:4\].*no rank holds all of it"):
        plan_moves((source,), ListedLayout.of_wishes((4,), [(1, Box((1,), (4,)))]), 1)
    plan = plan_moves((source,), ListedLayout.of_wishes((4,), [(1, Box((0,), (2,)))]), 1)
    assert [move.numel for move in plan.receives] == [2]


def test_interleaved_boxes_are_taken_from_and_put_to_their_place_in_memory():
    mesh = Mesh((2, 2), (0, 1, 2, 3))
    source = Layout.on_mesh((8,), mesh, (Split(0, 2), Split(0)))
    target = Layout.chunked((8,), 0, [0, 1, 2, 3])

    # Rank 1 holds rows 4:6 and is to hold rows 2:4, which are on rank 2.
    assert plan_moves((source,), target, 1) == RankMoves(
        (),
        (Move(1, 0, Box((0,), (2,)), 2, 0, Box((0,), (2,))),),
        (Move(2, 0, Box((0,), (2,)), 1, 0, Box((0,), (2,))),),
    )
    assert plan_moves((source,), target, 0).sends == ()

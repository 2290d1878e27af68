"""Every sample of an epoch is seen exactly once, on any number of ranks, changed at any time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

import shardkeep as sk
from shardkeep import DataCursor
from shardkeep.manifest import DictNode
from shardkeep.state.cursor import merge_counts
from shardkeep.state.keeping import keep_state
from shardkeep.state.live import Merged, Stored

EVERYTHING = frozenset({("size",)})


def cursors(world: int, size: int, **options: Any) -> list[DataCursor]:
    return [DataCursor(size, rank=rank, world=world, **options) for rank in range(world)]


def reloaded(before: Sequence[DataCursor], after: Sequence[DataCursor]) -> None:
    """Save and load as the engine does it: common values of one rank, counts merged of all."""
    kept = [cursor.kept() for cursor in before]
    common = [{key: value for key, value in one.items() if key != "taken"} for one in kept]
    assert all(one == common[0] for one in common), "values that ranks would disagree on"
    tree = keep_state(before[0]).tree
    for me, cursor in enumerate(after):
        wanted = cursor.wanted(Stored(tree, (), len(before), me))
        assert isinstance(wanted["taken"], Merged)
        assert len(wanted["holes"]) == len(kept[0]["holes"])
        counts = wanted["taken"].merge([one["taken"].value for one in kept])
        cursor.give({**common[0], "taken": counts}, EVERYTHING)


TAKES = st.lists(st.integers(0, 40), max_size=6)
STAGES = st.lists(st.tuples(st.integers(1, 7), TAKES), min_size=1, max_size=5)


@given(size=st.integers(0, 200), stages=STAGES, shuffle=st.booleans(), seed=st.integers(0, 9))
def test_every_sample_is_seen_once_whatever_the_ranks_take(size, stages, shuffle, seed):
    """Ranks take unequal numbers of samples, then all is loaded on another number of ranks."""
    seen: list[int] = []
    before: list[DataCursor] = []
    for world, takes in stages:
        now = cursors(world, size, seed=seed, shuffle=shuffle)
        if before:
            reloaded(before, now)
        for number, count in enumerate(takes):
            seen += now[number % world].take(count)
        before = now
    assert len(set(seen)) == len(seen)
    assert sum(cursor.remaining for cursor in before) == size - len(seen)
    for cursor in before:
        seen += cursor.take(size)
    assert sorted(seen) == list(range(size))


@given(
    size=st.integers(1, 150),
    worlds=st.lists(st.sampled_from([1, 2, 3, 4, 6, 12]), min_size=1, max_size=6),
    batches=st.integers(1, 3),
)
def test_global_batches_are_the_same_for_any_number_of_ranks(size, worlds, batches):
    """Ranks in lockstep: 12 samples at a time, as one rank alone would see them."""
    alone = DataCursor(size, rank=0, world=1)
    expected = [sorted(alone.take(12)) for _ in range(batches * len(worlds))]

    found: list[list[int]] = []
    before: list[DataCursor] = []
    for world in worlds:
        now = cursors(world, size)
        if before:
            reloaded(before, now)
        for _ in range(batches):
            found.append(sorted(s for cursor in now for s in cursor.take(12 // world)))
        before = now

    assert found == expected


@given(size=st.integers(0, 100), world=st.integers(1, 5), data=st.data())
def test_reading_ahead_changes_nothing(size, world, data):
    rank = data.draw(st.integers(0, world - 1))
    one, other = (DataCursor(size, rank=rank, world=world) for _ in range(2))
    ahead = list(one.upcoming())

    assert len(ahead) == one.remaining == other.remaining
    count = data.draw(st.integers(0, len(ahead)))
    one.advance(count)
    assert other.take(count) == ahead[:count]
    assert list(one.upcoming()) == list(other.upcoming()) == ahead[count:]


def test_reading_far_ahead_is_the_same_as_taking():
    one, other = (DataCursor(30_000, rank=1, world=3) for _ in range(2))

    assert list(one.upcoming()) == other.take(30_000)
    assert other.take(5) == []


def test_the_next_epoch_has_another_order_and_all_samples_again():
    cursor = DataCursor(50, rank=0, world=1, seed=3)
    first = cursor.take(20)
    cursor.next_epoch()
    second = cursor.take(50)

    assert first != second[:20]
    assert sorted(second) == list(range(50))
    assert cursor.epoch == 1


def test_an_epoch_goes_on_after_a_load_in_its_order():
    before = cursors(2, 40, seed=4)
    for cursor in before:
        cursor.next_epoch()
        cursor.take(7)
    rest = sorted(sample for cursor in before for sample in cursor.upcoming())
    after = cursors(3, 40, seed=9, shuffle=False)

    reloaded(before, after)

    assert sorted(sample for cursor in after for sample in cursor.take(40)) == rest
    assert {(cursor.epoch, cursor.seed, cursor.shuffle) for cursor in after} == {(1, 4, True)}
    after[0].next_epoch()
    twin = DataCursor(40, rank=0, world=3, seed=4)
    twin.next_epoch()
    twin.next_epoch()
    assert after[0].take(5) == twin.take(5)


def test_a_load_takes_back_what_was_taken_since():
    cursor = DataCursor(20, rank=0, world=1)
    cursor.take(5)
    kept = [DataCursor(20, rank=0, world=1)]
    kept[0].take(3)

    reloaded(kept, [cursor])

    assert cursor.remaining == 17
    assert cursor.take(2) == DataCursor(20, rank=0, world=1).take(5)[3:]


def test_ranks_of_one_tensor_parallel_group_count_once():
    """Four processes, two data-parallel ranks: the samples of each are seen by two."""
    before = [DataCursor(30, rank=number // 2, world=2) for number in range(4)]
    seen = [cursor.take(4 + cursor.rank) for cursor in before]
    assert seen[0] == seen[1]
    assert seen[2] == seen[3]
    after = [DataCursor(30, rank=number % 3, world=3) for number in range(6)]

    reloaded(before, after)

    assert after[0].take(3) == after[3].take(3)
    rest = [sample for cursor in after[1:3] for sample in cursor.take(30)]
    rest += seen[0] + seen[2] + after[0].take(30)
    assert len(set(rest)) == len(rest) == 27


@pytest.mark.parametrize(
    ("said", "match"),
    [
        ([[0, 3], [0, 4]], r"data-parallel rank 0 have taken 3 and 4 samples"),
        ([[0, 3], [2, 4]], r"dealt out to 2 .* those that saved are \[0, 2\]"),
        ([[1, 3]], r"dealt out to 2 .* those that saved are \[1\]"),
    ],
)
def test_positions_that_contradict_each_other_are_refused(said, match):
    with pytest.raises(sk.ConflictError, match=match):
        merge_counts(said, world=2)


def test_positions_of_some_ranks_only_are_refused(tmp_path):
    sk.save({"w": torch.ones(3), "data": DataCursor(10, rank=0, world=2)}, tmp_path / "c")
    state = {"w": torch.zeros(3), "data": DataCursor(10, rank=0, world=1)}

    with pytest.raises(sk.ConflictError, match=r"dealt out to 2 .* those that saved are \[0\]"):
        sk.load(tmp_path / "c", state)

    assert state["w"].tolist() == [0, 0, 0]


def test_data_of_another_size_is_refused(tmp_path):
    sk.save({"w": torch.ones(3), "data": DataCursor(1000)}, tmp_path / "c")
    cursor = DataCursor(1001)
    cursor.take(3)
    state = {"w": torch.zeros(3), "data": cursor}

    with pytest.raises(sk.ConflictError, match=r"had 1,000 samples .* and has 1,001 now"):
        sk.load(tmp_path / "c", state)

    assert cursor.remaining == 998
    assert state["w"].tolist() == [0, 0, 0]


def test_a_cursor_goes_through_a_checkpoint(tmp_path):
    cursor = DataCursor(100, seed=2)
    cursor.take(30)
    sk.save({"data": cursor}, tmp_path / "c")
    rest = cursor.take(100)

    fresh = DataCursor(100)
    sk.load(tmp_path / "c", {"data": fresh})

    assert fresh.take(100) == rest


@pytest.mark.parametrize(
    "bad", [{"size": -1}, {"size": 3, "rank": 2, "world": 2}, {"size": 3, "rank": -1, "world": 2}]
)
def test_a_rank_that_is_none_is_refused(bad):
    with pytest.raises(sk.InvalidError, match=r"no rank -?\d of \d with -?\d samples"):
        DataCursor(**bad)


@pytest.mark.parametrize("count", [-1, 6])
def test_no_more_than_remains_can_be_counted_as_seen(count):
    cursor = DataCursor(5, rank=0, world=1)

    with pytest.raises(sk.InvalidError, match=f"cannot take {count} samples, 5 remain"):
        cursor.advance(count)

    assert cursor.remaining == 5


def test_taking_fewer_than_none_is_refused():
    with pytest.raises(sk.InvalidError, match="cannot take -1 samples"):
        DataCursor(5, rank=0, world=1).take(-1)


def test_what_is_kept_stays_small_when_ranks_go_in_step():
    """However far the run is: no list of what was seen."""
    before = cursors(8, 10**9)
    for cursor in before:
        cursor.advance(10**8)
    after = cursors(6, 10**9)
    reloaded(before, after)

    tree = keep_state(after[0]).tree

    assert isinstance(tree, DictNode)
    assert len(repr(tree)) < 1000


@given(size=st.integers(0, 200), world=st.integers(1, 5), takes=TAKES)
def test_on_as_many_ranks_each_goes_on_with_the_samples_it_had(size, world, takes):
    """Also where they have taken unequal numbers: a run that is resumed is the run that it was."""
    before = cursors(world, size, seed=3)
    for number, count in enumerate(takes):
        before[number % world].take(count)
    after = cursors(world, size)

    reloaded(before, after)

    assert [cursor.take(size) for cursor in after] == [cursor.take(size) for cursor in before]


def test_what_is_kept_is_the_same_before_and_after_a_load():
    before = cursors(2, 40, seed=4)
    for cursor in before:
        cursor.take(7)
    after = cursors(2, 40)

    reloaded(before, after)

    assert [keep_state(cursor).tree for cursor in after] == [
        keep_state(cursor).tree for cursor in before
    ]
    assert [cursor.kept()["taken"].value for cursor in after] == [[0, 7], [1, 7]]

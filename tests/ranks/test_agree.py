"""If one rank is not ready, every rank raises; nobody waits for a rank that has given up."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from shardkeep.errors import (
    DeadlineError,
    RankFailedError,
    RankInputError,
    RanksDisagreeError,
    UnsupportedError,
)
from shardkeep.ranks import RankGroup, agree, agree_equal, share_bytes
from shardkeep.testing.example_counts import examples
from shardkeep.testing.thread_ranks import ThreadRanks


@settings(max_examples=examples(15), deadline=None)
@given(payloads=st.lists(st.binary(max_size=600), min_size=3, max_size=3))
def test_every_rank_gets_every_payload(three: ThreadRanks, payloads: list[bytes]):
    found = three.run(lambda rank, group: share_bytes(RankGroup.of(group), payloads[rank]))

    assert found == [payloads] * 3


@pytest.mark.parametrize("length", [0, 247, 248, 249, 100_000])
def test_payloads_of_any_length_arrive(three: ThreadRanks, length: int):
    payloads = [b"", b"\0" * length, bytes(range(256)) * (length // 256 + 1)]

    found = three.run(lambda rank, group: share_bytes(RankGroup.of(group), payloads[rank]))

    assert found == [payloads] * 3


def test_a_single_process_shares_with_itself():
    assert share_bytes(RankGroup.of(), b"x") == [b"x"]
    assert agree(RankGroup.of(), "phase", lambda: b"x") == [b"x"]


def _failing(errors: dict[int, Exception]):
    def act(rank, group):
        def check() -> bytes:
            if rank in errors:
                raise errors[rank]
            return str(rank).encode()

        return agree(RankGroup.of(group), "baking", check)

    return act


def test_facts_come_by_rank(three: ThreadRanks):
    assert three.run(_failing({})) == [[b"0", b"1", b"2"]] * 3


@pytest.mark.parametrize("error", [ValueError("too sweet"), TypeError("no oven")])
def test_bad_input_of_one_rank_raises_on_all(three: ThreadRanks, error: Exception):
    for found in three.errors(_failing({1: error})):
        assert isinstance(found, RankInputError)
        assert isinstance(found, ValueError)
        assert found.failures == {1: f"{type(error).__name__}: {error}"}
        assert str(found).startswith("baking failed on rank 1\n")


@pytest.mark.parametrize("error", [RuntimeError("fire"), KeyError("salt"), UnsupportedError("x")])
def test_another_failure_of_one_rank_raises_on_all(three: ThreadRanks, error: Exception):
    for found in three.errors(_failing({2: error})):
        assert type(found) is RankFailedError
        assert list(found.failures) == [2]
        assert type(error).__name__ in str(found)


def test_all_failed_ranks_are_named(three: ThreadRanks):
    for found in three.errors(_failing({0: ValueError("a"), 2: ValueError("a")})):
        assert isinstance(found, RankInputError)
        assert str(found) == "baking failed on ranks 0, 2\n  ranks 0, 2: ValueError: a"


def test_a_failure_beside_bad_input_is_a_failure(three: ThreadRanks):
    for found in three.errors(_failing({0: ValueError("a"), 2: OSError("b")})):
        assert type(found) is RankFailedError


def test_the_rank_that_failed_keeps_its_own_error_as_the_cause(three: ThreadRanks):
    mistake = ValueError("a")
    found = three.errors(_failing({1: mistake}))

    assert [error.__cause__ for error in found if error] == [None, mistake, None]


def test_a_long_message_arrives_whole(three: ThreadRanks):
    for found in three.errors(_failing({1: ValueError("x" * 5000 + "!")})):
        assert isinstance(found, RankInputError)
        assert found.failures[1].endswith("x!")


def test_a_single_process_raises_its_own_error():
    with pytest.raises(KeyError, match="salt"):
        agree(RankGroup.of(), "baking", lambda: {}["salt"])


def test_ranks_that_say_the_same_agree(three: ThreadRanks):
    three.run(lambda _, group: agree_equal(RankGroup.of(group), "p", lambda: {"b": 1, "a": [2]}))


def test_disagreement_is_told_by_answer(four: ThreadRanks):
    answers = [1, 2, 1, 1]

    found = four.errors(
        lambda rank, group: agree_equal(RankGroup.of(group), "voting", lambda: answers[rank])
    )

    for error in found:
        assert isinstance(error, RanksDisagreeError)
        assert str(error) == "voting: ranks disagree:\n  ranks 0, 2-3: 1\n  rank 1: 2"


def test_an_agreed_check_that_raises_on_one_rank_raises_on_all(three: ThreadRanks):
    def act(rank, group):
        agree_equal(RankGroup.of(group), "voting", lambda: [1, 2][rank])

    for error in three.errors(act):
        assert type(error) is RankFailedError
        assert "rank 2: IndexError" in str(error)


def test_who_waits_for_a_rank_that_never_comes_raises_in_time():
    world = ThreadRanks(3, timeout=0.5)

    def act(rank, group):
        if rank != 2:
            agree(RankGroup.of(group), "baking", bytes)

    *waiting, absent = world.errors(act)
    assert absent is None
    for error in waiting:
        assert isinstance(error, DeadlineError)
        assert "baking: not all of ranks 0-2 took part" in str(error)

"""Runs stand for a sequence in one way, and are never expanded to be trusted."""

import pytest
from hypothesis import given, strategies as st

from shardkeep.errors import CorruptError
from shardkeep.manifest import Runs, decode_runs, encode_runs

LIMIT = 2**24
numbers = st.lists(st.integers(0, 4), max_size=30) | st.lists(st.integers(0, 2**63 - 1), max_size=9)


@given(numbers)
def test_a_sequence_comes_back(sequence: list[int]):
    runs = encode_runs(sequence)
    decoded = decode_runs(runs, limit=len(sequence))

    assert list(decoded) == sequence
    assert encode_runs(decoded) == runs
    assert Runs.of(sequence) == decoded


@given(numbers, st.integers(-40, 40), st.slices(30))
def test_runs_answer_like_a_list(sequence: list[int], index: int, part: slice):
    runs = Runs.of(sequence)

    assert len(runs) == len(sequence)
    assert runs[part] == sequence[part]
    assert runs.bounds == (min(sequence, default=0), max(sequence, default=0))
    if -len(sequence) <= index < len(sequence):
        assert runs[index] == sequence[index]
    else:
        with pytest.raises(IndexError, match="is not one of"):
            runs[index]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 2), st.integers(0, 3)), max_size=4))
def test_a_sequence_has_one_spelling(runs: list[tuple[int, int, int]]):
    try:
        decoded = decode_runs(runs, limit=LIMIT)
    except CorruptError:
        return
    assert encode_runs(list(decoded)) == [list(run) for run in runs]


def test_the_example_of_the_format_page():
    assert list(decode_runs([[0, 1, 4], [9, 0, 2]], limit=6)) == [0, 1, 2, 3, 9, 9]


def test_falling_numbers_are_a_run():
    assert encode_runs([9, 6, 3, 0]) == [[9, -3, 4]]
    assert list(decode_runs([[9, -3, 4]], limit=4)) == [9, 6, 3, 0]


def test_a_regular_sequence_of_any_length_is_looked_up_not_expanded():
    runs = decode_runs([[5, 0, 2**60], [0, 1, 2**60]], limit=2**62)

    assert (runs[2**60 - 1], runs[2**60], runs[2**61 - 1]) == (5, 0, 2**60 - 1)
    assert runs.bounds == (0, 2**60 - 1)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"a": 1}, "runs are a list"),
        ("[]", "runs are a list"),
        ([[0, 1]], "a run is"),
        ([[0, 1, 2, 3]], "a run is"),
        ([3], "a run is"),
        ([[0, 1, True]], "a run is"),
        ([[0, 1.0, 2]], "a run is"),
        ([[0, 1, "2"]], "a run is"),
        ([[0, 1, 0]], "is empty"),
        ([[0, 1, -3]], "is empty"),
        ([[-1, 1, 3]], "leaves the range"),
        ([[2, -1, 4]], "leaves the range"),
        ([[2**63, 0, 1]], "leaves the range"),
        ([[0, 2**62, 3]], "leaves the range"),
        ([[10**5000, 0, 1]], "an int of .* bits"),
        ([[0, 0, 2**60]], "runs of 1152921504606846976 numbers; expected at most 16777216"),
        ([[0, 0, 10**5000]], "runs of an int of .* bits numbers"),
        ([[0, 0, LIMIT], [5, 0, 1]], "at most 16777216"),
        ([[0, 1, 2], [2, 1, 2]], "does not take 2"),
        ([[0, 0, 1], [5, 0, 2]], "does not take 5"),
        ([[0, 1, 1]], "alone has a step"),
    ],
)
def test_what_no_writer_writes_is_rejected(data: object, reason: str):
    with pytest.raises(CorruptError, match=reason):
        decode_runs(data, limit=LIMIT)

"""Digests are numbers that are kept, and written, as fixed-width hex."""

import pytest
from hypothesis import given, strategies as st

from shardkeep.errors import CorruptError, InvalidError
from shardkeep.manifest import Digests

numbers = st.lists(st.integers(0, 2**64 - 1), max_size=9)


@given(numbers, st.slices(9))
def test_digests_answer_like_a_list_and_come_back_from_hex(sequence: list[int], part: slice):
    digests = Digests.of(sequence)

    assert list(digests) == sequence
    assert [digests[index] for index in range(len(digests))] == sequence
    assert list(digests[part]) == sequence[part]
    assert digests.hex() == "".join(f"{number:016x}" for number in sequence)
    assert Digests.from_hex(digests.hex()) == digests


def test_places_outside_are_refused():
    digests = Digests.of([1, 2])

    assert digests[-1] == 2
    for index in (2, -3):
        with pytest.raises(IndexError, match="is not one of 2"):
            digests[index]


@pytest.mark.parametrize(
    "text", ["0" * 15, "0" * 17, "G" * 16, "A" * 16, " " + "0" * 16 + " " * 15]
)
def test_other_texts_are_rejected(text: str):
    with pytest.raises(CorruptError, match="not 16 lower-case hex digits each"):
        Digests.from_hex(text)


@pytest.mark.parametrize("number", [-1, 2**64, 0.5])
def test_other_numbers_are_refused(number):
    with pytest.raises(InvalidError, match="a digest is an integer from 0"):
        Digests.of([number])

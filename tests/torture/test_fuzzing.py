"""Do readers declare all their errors, and would fuzzing find one that does not?"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest

from shardkeep.manifest import entries
from shardkeep.translate import pickle_reading
from torture.fuzz_targets import CORPUS, TARGETS
from torture.fuzzing import Fuzzing, input_of


def test_readers_take_any_bytes_or_raise_their_own_error() -> None:
    tally = Fuzzing().run("short", 0, print)
    assert tally.cases > 10_000
    assert tally.violations == []


@pytest.mark.parametrize("name", TARGETS)
def test_the_first_seed_of_each_target_is_taken(name: str) -> None:
    seeds = sorted((CORPUS / name / "seeds").iterdir())
    assert any(_is_taken(name, one.read_bytes()) for one in seeds)


def _is_taken(name: str, data: bytes) -> bool:
    try:
        TARGETS[name](data)
    except Exception:
        return False
    return True


def test_an_input_is_the_same_whenever_it_is_made() -> None:
    assert input_of("manifest", 3, "17") == input_of("manifest", 3, "17")
    assert input_of("manifest", 3, "17") != input_of("manifest", 4, "17")


def _careless_of_types(data: bytes) -> None:
    with patch.object(entries, "shown", str.upper):
        TARGETS["header"](data)


# Once in a process is enough for what takes long.
_done: set[str] = set()


def _careless_of_lengths(data: bytes) -> None:
    def take(machine: Any, nbytes: int) -> bytes:
        if nbytes > 2**28 and "lengths" not in _done:
            _done.add("lengths")
            return b"x" * 2**29
        return sound(machine, nbytes)

    sound = pickle_reading._Machine.take  # type: ignore[attr-defined]
    with patch.object(pickle_reading._Machine, "take", take):  # type: ignore[attr-defined]
        TARGETS["dcp_metadata"](data)


def _careless_of_time(data: bytes) -> None:
    if b"ud800" in data and "time" not in _done:
        _done.add("time")
        end = time.thread_time() + 1.5
        while time.thread_time() < end:
            sum(range(10**6))


BUGS: dict[str, tuple[Callable[[bytes], None], str]] = {
    "header": (_careless_of_types, "raised TypeError"),
    "dcp_metadata": (_careless_of_lengths, "of memory"),
    "hf_index": (_careless_of_time, "s for"),
}


def test_planted_bugs_are_found_and_can_be_replayed() -> None:
    campaign = Fuzzing({name: bug for name, (bug, _) in BUGS.items()})
    tally = campaign.run("short", 0, print)
    for name, (_, words) in BUGS.items():
        found = [one for one in tally.violations if one.startswith(f"{name}:") and words in one]
        assert found, name
    case = next(one for one in tally.violations if one.startswith("header:")).split()[0]
    assert len(campaign.run("short", 0, print, case).violations) == 1

"""As many threads as were asked for, else as many as a rank has cores, two at most."""

from __future__ import annotations

import pytest

import shardkeep as sk
from shardkeep.errors import InvalidError
from shardkeep.transfer import threads
from shardkeep.transfer.threads import thread_count


@pytest.mark.parametrize(
    ("cores", "ranks", "count"),
    [(1, "1", 1), (2, "1", 2), (2, "2", 1), (2, "4", 1), (8, "4", 2), (64, "8", 2), (8, "", 2)],
)
def test_ranks_of_a_host_share_its_cores(
    monkeypatch: pytest.MonkeyPatch, cores: int, ranks: str, count: int
) -> None:
    monkeypatch.setattr(threads, "core_count", lambda: cores)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    assert thread_count(None) == count
    assert thread_count(5) == 5


@pytest.mark.parametrize("said", ["", "0", "-3", "many"])
def test_what_is_no_number_of_ranks_counts_as_one(
    monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    monkeypatch.setattr(threads, "core_count", lambda: 2)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", said)
    assert thread_count(None) == 2


def test_no_threads_are_refused_at_every_door(tmp_path) -> None:
    sk.save({"a": 1}, tmp_path / "a")
    for act in (
        lambda: sk.save({"a": 1}, tmp_path / "b", threads=0),
        lambda: sk.save_async({"a": 1}, tmp_path / "b", threads=0),
        lambda: sk.load(tmp_path / "a", threads=0),
        lambda: sk.load(tmp_path / "a", into={"a": 0}, threads=0),
        lambda: sk.open(tmp_path / "a", threads=0),
        lambda: sk.Checkpointer(tmp_path / "run", threads=0),
    ):
        with pytest.raises(InvalidError, match="threads must be at least 1, got 0"):
            act()

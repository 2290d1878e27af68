"""A save whose snapshot a forked child keeps holds what was there when it began."""

import os
import queue
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import shardkeep as sk
from shardkeep.errors import ConflictError, InvalidError, ShardkeepError
from shardkeep.state import frozen
from shardkeep.transfer import snapshots

ONLY_LINUX = "Linux alone reads a child's memory"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason=ONLY_LINUX)


def state_of(number: int) -> dict[str, Any]:
    big = torch.arange(3 * 2**18, dtype=torch.float32).reshape(3, 512, 512) + number
    return {
        "big": big,
        "view": big[1],
        "turned": big[0].t(),
        "bf16": big.to(torch.bfloat16),
        "odd": torch.arange(2**20 + 3, dtype=torch.int16) + number,
        "small": torch.full((5,), float(number)),
        "empty": torch.empty(0, 7),
        "step": number,
    }


@pytest.mark.parametrize("threads", [1, 3])
def test_what_training_does_meanwhile_is_not_saved(tmp_path: Path, threads: int) -> None:
    state = state_of(1)
    handle = sk.save_async(state, tmp_path / "a", snapshot="fork", threads=threads)
    for leaf in state.values():
        if isinstance(leaf, torch.Tensor):
            leaf.zero_()
    handle.result()
    loaded = sk.load(tmp_path / "a")
    for key, expected in state_of(1).items():
        assert torch.equal(loaded[key], expected) if key != "step" else loaded[key] == expected


def test_many_in_a_row_each_hold_their_own(tmp_path: Path) -> None:
    state = state_of(0)
    handles: list[Any] = []
    for number in range(4):
        state["big"].fill_(number)
        path = tmp_path / str(number)
        handles.append(sk.save_async({"big": state["big"]}, path, snapshot="fork"))
    for number, handle in enumerate(handles):
        handle.result()
        assert sk.load(tmp_path / str(number))["big"].unique().tolist() == [number]


def test_a_run_can_fork(tmp_path: Path) -> None:
    with sk.Checkpointer(tmp_path, snapshot="fork") as run:
        state = state_of(3)
        handle = run.save_async(3, state)
        state["big"].zero_()
        handle.result()
        assert run.restore(state) == 3
    assert torch.equal(state["big"], state_of(3)["big"])


def test_a_child_that_is_killed_fails_the_save_and_nothing_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids: list[int] = []
    fork = frozen._fork

    def forked() -> int:
        pids.append(fork())
        return pids[-1]

    monkeypatch.setattr(frozen, "_fork", forked)
    read = frozen.Frozen.read_into

    def killed(self: frozen.Frozen, *place: int) -> None:
        os.kill(pids[-1], signal.SIGKILL)
        os.waitpid(pids[-1], 0)
        monkeypatch.setattr(frozen.Frozen, "read_into", read)
        read(self, *place)

    monkeypatch.setattr(frozen.Frozen, "read_into", killed)
    handle = sk.save_async({"big": torch.ones(2**20)}, tmp_path / "a", snapshot="fork")
    with pytest.raises(ShardkeepError, match="keeps the state as it was is gone"):
        handle.result()
    assert list((tmp_path / "a").iterdir()) == []


def joined(monkeypatch: pytest.MonkeyPatch) -> "queue.Queue[list[tuple[int, int]]]":
    """Where memory is put into huge pages from now on."""
    found: queue.Queue[list[tuple[int, int]]] = queue.Queue()
    monkeypatch.setattr(snapshots, "join_pages", found.put)
    return found


def spans_of(*tensors: torch.Tensor) -> list[tuple[int, int]]:
    return [(one.data_ptr(), one.data_ptr() + one.nbytes) for one in tensors]


@pytest.mark.parametrize("fails", [False, True])
def test_after_a_save_what_was_frozen_is_prepared_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    found = joined(monkeypatch)
    state = {"a": torch.ones(2**18), "small": torch.ones(8), "b": torch.ones(2**19)}
    if fails:
        sk.save({}, tmp_path / "a")
    handle = sk.save_async(state, tmp_path / "a", snapshot="fork")
    if fails:
        with pytest.raises(ConflictError, match="overwrite"):
            handle.result()
    assert found.get(timeout=60) == spans_of(state["a"], state["b"])


def test_what_a_fork_would_keep_can_be_prepared_before(monkeypatch: pytest.MonkeyPatch) -> None:
    found = joined(monkeypatch)
    state = {"a": torch.ones(2**18), "small": torch.ones(8)}
    sk.prepare_async(state, snapshot="fork")
    assert found.get(timeout=60) == spans_of(state["a"])


def test_what_is_copied_anyway_is_not_prepared_for_a_fork(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = joined(monkeypatch)
    shared = {"a": torch.ones(2**18).share_memory_()}
    sk.prepare_async(shared, snapshot="fork")
    sk.save_async(shared, tmp_path / "a", snapshot="fork").result()
    sk.save_async({"a": torch.ones(2**18)}, tmp_path / "b").result()
    own = {"a": torch.ones(2**18)}
    sk.prepare_async(own, snapshot="fork")
    assert found.get(timeout=60) == spans_of(own["a"])
    assert found.empty()


def test_other_words_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="snapshot is 'copy' or 'fork', got 'thread'"):
        sk.prepare_async({}, snapshot="thread")  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match="snapshot is 'copy' or 'fork', got 'thread'"):
        sk.save_async({}, tmp_path / "a", snapshot="thread")  # type: ignore[arg-type]

"""What prune takes, and what it leaves to those who are still at work."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import shardkeep as sk
from shardkeep.storage import LocalStorage
from shardkeep.storage.file_calls import FileCalls
from shardkeep.transfer import save as save_module
from shardkeep.transfer.copy_files import copy_checkpoint
from shardkeep.transfer.progress import Meter
from tests.storage.faulty_calls import FaultyCalls


def state_of(version: int) -> dict[str, Any]:
    return {"a": torch.full((100,), version)}


def test_a_save_that_is_under_way_loses_nothing_to_prune(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sk.save(state_of(1), tmp_path)
    commit, seen = save_module.commit, list[sk.PruneReport]()

    def prune_first(*args: Any) -> None:
        seen.append(sk.prune(tmp_path))
        commit(*args)

    monkeypatch.setattr(save_module, "commit", prune_first)
    sk.save(state_of(2), tmp_path, overwrite=True)

    assert seen == [sk.PruneReport((), 0)]
    assert torch.equal(sk.load(tmp_path)["a"], state_of(2)["a"])
    assert not list(tmp_path.glob("*.lock"))


def test_a_temporary_manifest_of_a_save_under_way_stays(tmp_path: Path) -> None:
    calls = FaultyCalls()
    with LocalStorage(tmp_path / "c", create=True, calls=calls) as storage:
        calls.before("link", lambda *_: sk.prune(tmp_path / "c"))
        sk.save(state_of(1), storage)
    assert torch.equal(sk.load(tmp_path / "c")["a"], state_of(1)["a"])


def test_a_copy_that_is_under_way_loses_nothing_to_prune(tmp_path: Path) -> None:
    sk.save(state_of(1), tmp_path / "a")
    calls, seen = FaultyCalls(), list[sk.PruneReport]()
    with (
        LocalStorage(tmp_path / "a") as source,
        LocalStorage(tmp_path / "b", create=True, calls=calls) as target,
    ):
        calls.before("link", lambda *_: seen.append(sk.prune(tmp_path / "b")))
        copy_checkpoint(source, target, threads=1, meter=Meter("copying", None, show=False))
    assert seen == [sk.PruneReport((), 0)]
    assert torch.equal(sk.load(tmp_path / "b")["a"], state_of(1)["a"])


def test_what_a_killed_save_left_goes_with_its_lock(tmp_path: Path) -> None:
    sk.save(state_of(1), tmp_path)
    kept = set(os.listdir(tmp_path))
    pid = os.fork()
    if pid == 0:
        # At the moment of its commit.
        FileCalls.rename = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
        sk.save(state_of(2), tmp_path, overwrite=True)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    left = set(os.listdir(tmp_path)) - kept
    assert sorted(name.partition(".")[2].partition("-")[0] for name in left) == [
        "lock", "safetensors", "tmp"
    ]  # fmt: skip

    assert set(sk.prune(tmp_path, dry_run=True).names) == left
    assert set(sk.prune(tmp_path).names) == left
    assert set(os.listdir(tmp_path)) == kept


def test_a_file_system_without_locks_saves_nevertheless(tmp_path: Path) -> None:
    calls = FaultyCalls()
    calls.always_fail("flock", 95)
    with LocalStorage(tmp_path / "c", create=True, calls=calls) as storage:
        sk.save(state_of(1), storage)
        assert calls.counts["flock"] == 1
    assert sk.prune(tmp_path / "c").names == ()
    assert torch.equal(sk.load(tmp_path / "c")["a"], state_of(1)["a"])


def test_a_lock_that_was_taken_for_a_leftover_before_it_was_locked_is_made_anew(
    tmp_path: Path,
) -> None:
    calls = FaultyCalls()
    with LocalStorage(tmp_path, calls=calls) as storage:
        taken = list[bool]()

        def take(*_: object) -> None:
            if not taken:
                with LocalStorage(tmp_path) as other:
                    taken.append(other.delete_unless_held("x.lock"))

        calls.before("flock", take)
        with storage.hold("x.lock"), LocalStorage(tmp_path) as other:
            assert taken == [True]
            assert other.is_held("x.lock")


def test_a_run_leaves_alone_what_another_job_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = sk.Checkpointer(tmp_path)
    commit, seen = save_module.commit, list[sk.RunPrune]()

    def prune_first(*args: Any) -> None:
        seen.append(other.prune(leftovers=True))
        commit(*args)

    monkeypatch.setattr(save_module, "commit", prune_first)
    sk.Checkpointer(tmp_path).save(1, state_of(1))

    assert seen == [sk.RunPrune()]
    assert other.steps() == [1]

"""Is what a run saves listed, and dropped as its rules say?"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import shardkeep as sk
from shardkeep.storage.file_calls import FileCalls
from shardkeep.transfer import save as save_module, saving
from tests.runs import (
    assert_restores,
    break_off,
    cut_the_manifest,
    data_file,
    empty,
    save_all,
    state_of,
)

# Saving and listing


def test_what_is_saved_is_listed_and_comes_back(make):
    with make() as run:
        result = run.save(10, state_of(10))
        handle = run.save_async(20, state_of(20))
        assert Path(handle.result().path) == run.path_of(20)
        assert Path(result.path) == run.path_of(10) == run.path / "step-00000010"
        assert (run.steps(), run.latest()) == ([10, 20], 20)
        assert_restores(run, 20)
        assert_restores(run, 10, 10)


def test_a_background_save_keeps_the_state_of_its_call(make):
    with make() as run:
        state = state_of(10)
        run.save_async(10, state)
        state["w"].zero_()
        run.wait()
        assert_restores(run, 10)


def test_a_restore_needs_a_state_to_fill(make):
    with make() as run:
        run.save(10, state_of(10))
        with pytest.raises(sk.InvalidError, match="fills a state in place"):
            run.restore(None)
        assert_restores(run, 10)


def test_a_step_is_saved_once(make):
    run = make()
    run.save(10, state_of(10))
    with pytest.raises(sk.ConflictError, match="step-00000010 holds a checkpoint already"):
        run.save(10, state_of(11))
    assert_restores(run, 10)
    make(overwrite=True).save(10, {"w": torch.zeros(2000, dtype=torch.int64), "step": 5})
    assert run.restore(state := empty()) == 10
    assert state["step"] == 5


def test_metrics_and_metadata_are_kept_with_the_checkpoint(make):
    run = make()
    run.save(10, state_of(10), metrics={"loss": torch.tensor(0.5)}, metadata={"note": "mine"})
    assert_restores(run, 10)
    said = run.restored.metadata
    assert said["note"] == "mine"
    assert said["run"]["metrics"] == {"loss": 0.5}
    assert said["run"]["step"] == 10
    assert abs(said["run"]["saved_at"] - time.time()) < 600


# Retention


@pytest.mark.parametrize("in_background", [False, True])
@pytest.mark.parametrize(
    ("rule", "kept"),
    [
        ({}, [1, 2, 3, 4, 5, 6, 7]),
        ({"keep_last": 2}, [6, 7]),
        ({"keep_every": 3}, [3, 6, 7]),
        ({"keep_best": ("loss", "min", 2)}, [1, 4, 7]),
        ({"keep_last": 1, "keep_every": 5, "keep_best": ("loss", "max", 1)}, [2, 5, 7]),
    ],
)
def test_a_run_keeps_the_union_of_its_rules(make, rule, kept, in_background):
    losses = {1: 1.0, 2: 9.0, 3: math.nan, 4: 0.5, 5: 2.0, 6: 3.0, 7: math.nan}
    with make(**rule) as run:
        for step, loss in losses.items():
            save = run.save_async if in_background else run.save
            save(step, state_of(step), metrics={"loss": loss})
        run.wait()
        assert run.steps() == kept
        assert sorted(os.listdir(run.path)) == [f"step-{step:08d}" for step in kept]
        for step in kept:
            assert_restores(run, step, step)


def test_the_best_is_found_by_its_metric(make):
    run = make(keep_best=("loss", "min", 1))
    assert run.best() is None
    for step, loss in {1: 3.0, 2: 1.0, 3: math.nan}.items():
        run.save(step, state_of(step), metrics={"loss": loss})
    assert run.best() == 2
    assert_restores(run, 2, "best")
    with pytest.raises(sk.InvalidError, match="only with keep_best"):
        make().best()


def test_old_checkpoints_that_cannot_be_removed_do_not_fail_the_save(make, monkeypatch, caplog):
    run = make(keep_last=1)

    def refused(*args: object, **more: object) -> None:
        raise PermissionError(13, "Permission denied")

    run.save(1, state_of(1))
    monkeypatch.setattr(FileCalls, "rename", refused)
    run.save(2, state_of(2))
    assert run.steps() == [1, 2]
    assert "were not removed" in caplog.text


def test_the_step_that_was_just_saved_is_never_dropped(make):
    save_all(make(), 100, 200)
    run = make(keep_last=1)
    run.save(50, state_of(50))
    assert run.steps() == [50, 200]


def test_a_dry_run_only_tells(make):
    save_all(make(), 1, 2, 3)
    run = make(keep_last=1)
    found = run.prune(dry_run=True)
    assert found.steps == (1, 2)
    assert found.nbytes == sum(data_file(run.path_of(step)).stat().st_size for step in (1, 2))
    assert run.steps() == [1, 2, 3]
    assert run.prune() == found
    assert run.steps() == [3]
    assert run.prune() == sk.RunPrune()


def test_leftovers_and_damaged_ones_go_only_when_told(make):
    run = make(keep_last=3)
    save_all(run, 1, 2, 3)
    break_off(run.path_of(1))
    cut_the_manifest(run.path_of(2))
    assert run.prune() == sk.RunPrune()
    assert run.prune(leftovers=True, damaged=True, dry_run=True).damaged == (2,)
    assert run.path_of(1).exists()
    assert run.prune(leftovers=True).leftovers == (1,)
    assert not run.path_of(1).exists()
    assert run.prune(damaged=True).damaged == (2,)
    assert os.listdir(run.path) == ["step-00000003"]


def test_leftovers_that_nobody_has_touched_for_a_day_go_by_themselves(make):
    run = make()
    save_all(run, 1, 2)
    break_off(run.path_of(1))
    for path in (*run.path_of(1).iterdir(), run.path_of(1)):
        os.utime(path, (1.0, 1.0))
    run.save(3, state_of(3))
    assert not run.path_of(1).exists()
    assert run.steps() == [2, 3]


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Nothing is committed before it is opened."""
    gate, commit = threading.Event(), save_module.commit

    def gated(*arguments: Any) -> None:
        assert gate.wait(30)
        commit(*arguments)

    monkeypatch.setattr(save_module, "commit", gated)
    yield gate
    gate.set()
    saving.background.wait()


def test_a_save_that_is_under_way_is_no_leftover(make, gate):
    with make() as run:
        handle = run.save_async(1, state_of(1))
        deadline = time.monotonic() + 30
        while not run.path_of(1).exists() and time.monotonic() < deadline:
            time.sleep(0.002)
        assert run.prune(leftovers=True) == sk.RunPrune()
        assert run.steps() == []
        gate.set()
        handle.result()
        assert_restores(run, 1)


def test_a_restore_waits_for_the_save_that_is_under_way(make, gate):
    with make() as run:
        run.save_async(1, state_of(1))
        threading.Timer(0.05, gate.set).start()
        assert_restores(run, 1)

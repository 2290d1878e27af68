"""Does a run save when it is due, stop when it is told to, and tell what went wrong?"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import shardkeep as sk
from shardkeep import checkpointer
from shardkeep.transfer import due, last_wait, save as save_module, saving
from shardkeep.transfer.background import Handle
from shardkeep.transfer.signals import SignalWatch
from tests.runs import (
    assert_restores,
    empty,
    save_all,
    state_of,
)

# Saving when it is due


def test_a_run_saves_every_so_many_steps_and_no_step_twice(make):
    with make(every_steps=5, background=False) as run:
        saved = [step for step in range(1, 12) if run.maybe_save(step, state_of(step))]
        assert saved == run.steps() == [5, 10]
        assert run.maybe_save(10, state_of(10)) is None
    with make(every_steps=5) as run:
        assert_restores(run, 10)
        assert run.maybe_save(10, state_of(10)) is None
        assert isinstance(run.maybe_save(15, state_of(15)), sk.Handle)


def test_a_run_saves_when_its_time_is_over(make, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(due.time, "monotonic", lambda: now[0])
    with make(every_seconds=60, background=False) as run:
        saved = []
        for step in range(1, 13):
            now[0] += 25
            if run.maybe_save(step, state_of(step)):
                saved.append(step)
        assert saved == run.steps() == [3, 6, 9, 12]


@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        ({"every_steps": 3}, ["copy"]),
        ({"every_seconds": 60}, ["copy"]),
        ({"every_steps": 3, "background": False}, []),
        ({"every_steps": 3, "snapshot": "fork"}, ["fork"]),
        ({}, []),
    ],
)
def test_memory_for_saves_in_the_background_is_prepared_once(make, monkeypatch, options, kinds):
    prepared = []
    monkeypatch.setattr(
        checkpointer, "prepare_async", lambda state, snapshot: prepared.append((state, snapshot))
    )
    states = [state_of(step) for step in range(3)]
    with make(**options) as run:
        for step, state in enumerate(states[1:], start=1):
            assert run.maybe_save(step, state) is None
    assert prepared == [(states[1], kind) for kind in kinds]


def test_a_state_that_cannot_be_saved_is_not_prepared_and_the_save_says_why(make):
    with make(every_steps=2) as run:
        state = {"odd": object()}
        assert run.maybe_save(1, state) is None
        with pytest.raises(sk.InvalidError, match="odd"):
            run.maybe_save(2, state)


def test_a_run_without_a_rule_saves_only_when_told(make):
    with make() as run:
        assert [run.should_save(step) for step in range(5)] == [False] * 5


@pytest.fixture
def default_signals() -> Iterator[None]:
    before = [signal.signal(number, signal.SIG_DFL) for number in (signal.SIGUSR1, signal.SIGTERM)]
    yield
    signal.signal(signal.SIGUSR1, before[0])
    signal.signal(signal.SIGTERM, before[1])


@pytest.mark.usefixtures("default_signals")
def test_sigusr1_saves_and_goes_on_and_sigterm_saves_and_stops(make, caplog):
    with make(on_signal=True) as run:
        step = 0
        while not run.stopping and step < 100:
            step += 1
            if step in (3, 7):
                os.kill(os.getpid(), signal.SIGUSR1)
            if step == 12:
                os.kill(os.getpid(), signal.SIGTERM)
                # A scheduler may send it again, right into the save.
                os.kill(os.getpid(), signal.SIGTERM)
            run.maybe_save(step, state_of(step))
        assert step == 12
        # Before the end of the block: a process that is told to stop does not save in background.
        assert run.steps() == [3, 7, 12]
    assert "SIGTERM: saving a checkpoint at step 12" in caplog.text
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


@pytest.mark.usefixtures("default_signals")
def test_both_signals_at_once_make_one_checkpoint_and_stop(make):
    with make(on_signal=True) as run:
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGTERM)
        assert run.should_save(1)
        assert run.stopping
        assert not run.should_save(2)


@pytest.mark.usefixtures("default_signals")
def test_a_forked_child_still_dies_of_sigterm(make):
    with make(on_signal=True):
        source, target = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(target, b"x")
            time.sleep(10)
            os._exit(0)
        os.read(source, 1)
        os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
        assert os.WTERMSIG(status) == signal.SIGTERM


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> Iterator[Handle[Any]]:
    """A save that does not end by itself, as one of whose ranks was killed; SIGTERM ends it."""
    monkeypatch.setattr(last_wait, "_LAST_SECONDS", 0.05)
    handle: Handle[Any] = Handle("the checkpoint")
    end = lambda *_: handle.done() or handle.finish(lambda: None)  # noqa: E731
    before = signal.signal(signal.SIGTERM, end)
    too_late = threading.Timer(20, handle.finish, [lambda: "nobody ended it"])
    too_late.start()
    yield handle
    too_late.cancel()
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("is_told_first", [True, False])
def test_after_an_error_sigterm_ends_the_wait_for_a_save(make, endless, caplog, is_told_first):
    tell = threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGTERM])
    with pytest.raises(RuntimeError, match="peer"), make(on_signal=True) as run:  # noqa: PT012
        run._under_way.add(7, endless)
        if is_told_first:
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            tell.start()
        raise RuntimeError("connection closed by peer")

    assert endless.result(0) is None
    assert "SIGTERM: the saves of steps [7] are given up" in caplog.text
    assert "connection closed by peer" in caplog.text


def test_after_an_error_a_save_that_ends_is_waited_for(make, endless):
    save = threading.Timer(0.1, endless.finish, [lambda: "saved"])
    with pytest.raises(RuntimeError, match="mine"), make(on_signal=True) as run:  # noqa: PT012
        run._under_way.add(7, endless)
        save.start()
        raise RuntimeError("an error of mine")

    assert endless.result(0) == "saved"


def test_signals_are_watched_from_the_main_thread_only():
    errors: list[str] = []

    def watch() -> None:
        with pytest.raises(sk.InvalidError, match="main thread only") as caught:
            SignalWatch()
        errors.append(str(caught.value))

    thread = threading.Thread(target=watch)
    thread.start()
    thread.join()
    assert len(errors) == 1


# Failures


def begin_failing(run: sk.Checkpointer, step: int = 10) -> Any:
    """A save in the background that will fail: another job has saved the same step meanwhile."""
    return run.save_async(step, state_of(step))


@pytest.fixture
def failing(make) -> sk.Checkpointer:
    save_all(make(), 10, 11)
    return make()


def test_a_failed_background_save_is_told_by_wait_once(failing):
    handle = begin_failing(failing)
    with pytest.raises(sk.ConflictError, match="holds a checkpoint already"):
        failing.wait()
    failing.wait()
    assert handle.has_failed()
    failing.close()


@pytest.mark.parametrize("call", ["save", "save_async", "restore", "close"])
def test_a_failed_background_save_is_told_by_the_next_call(failing, call):
    begin_failing(failing)
    saving.background.wait()
    calls: dict[str, Callable[[], Any]] = {
        "save": lambda: failing.save(20, state_of(20)),
        "save_async": lambda: failing.save_async(20, state_of(20)),
        "restore": lambda: failing.restore(empty()),
        "close": failing.close,
    }
    with pytest.raises(sk.ConflictError, match="step-00000010 holds a checkpoint already"):
        calls[call]()
    failing.save(20, state_of(20))
    failing.close()
    assert failing.steps() == [10, 11, 20]


def test_all_failures_are_told_when_several_saves_failed(make, monkeypatch):
    gate, numbers = threading.Event(), itertools.count(1)

    def broken(*arguments: Any) -> None:
        assert gate.wait(30)
        raise sk.StorageError(f"disk {next(numbers)} is on fire")

    monkeypatch.setattr(save_module, "commit", broken)
    run = make()
    run.save_async(10, state_of(10))
    run.save_async(11, state_of(11))
    gate.set()
    with pytest.raises(sk.StorageError, match="disk 1 is on fire") as caught:
        run.wait()
    assert "disk 2 is on fire" in caught.value.__notes__[0]
    run.close()


def test_a_failure_that_its_handle_told_is_not_told_again(failing):
    handle = begin_failing(failing)
    with pytest.raises(sk.ConflictError, match="holds a checkpoint already"):
        handle.result()
    failing.close()


def test_the_end_of_the_block_tells_a_failure(failing):
    with pytest.raises(sk.ConflictError, match="holds a checkpoint already"), failing:
        begin_failing(failing)


def test_a_failed_save_does_not_hide_what_ended_the_block(failing, caplog):
    def broken() -> None:
        with failing:
            begin_failing(failing)
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError, match="division"):
        broken()
    assert "a save failed, too" in caplog.text


def test_a_failed_save_leaves_the_run_as_it_was(make):
    run = make()
    save_all(run, 10)
    with pytest.raises(sk.InvalidError, match="object"):
        run.save(20, {"bad": object()})
    assert run.steps() == [10]
    assert_restores(run, 10)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"keep_last": 0}, "keep_last must be at least 1"),
        ({"keep_every": 0}, "keep_every must be at least 1"),
        ({"keep_best": ("loss", "low", 1)}, "keep_best is"),
        ({"every_steps": 0}, "every_steps must be at least 1"),
        ({"every_seconds": 0}, "every_seconds must be positive"),
    ],
)
def test_options_that_make_no_sense_are_refused(make, options, text):
    with pytest.raises(sk.InvalidError, match=text):
        make(**options)


def test_arguments_that_make_no_sense_are_refused(make):
    run = make()
    with pytest.raises(sk.InvalidError, match=r"from 0 to 9.*got -1"):
        run.save(-1, state_of(1))
    with pytest.raises(sk.InvalidError, match="'run' of the metadata is the run's own"):
        run.save(1, state_of(1), metadata={"run": 1})
    with pytest.raises(sk.InvalidError, match="metric 'loss' is no number"):
        run.save_async(1, state_of(1), metrics={"loss": "low"})
    with pytest.raises(sk.InvalidError, match="'raise' or 'fallback'"):
        run.restore(empty(), on_damage="ignore")
    with pytest.raises(sk.InvalidError, match="'latest', 'best' or None"):
        run.restore(empty(), "first")
    assert run.steps() == []


def test_a_run_in_a_place_that_is_a_file_is_told(make, tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(sk.InvalidError, match="part of the path is a file"):
        make().save(1, state_of(1))
    with pytest.raises(sk.StorageError, match="listing the run"):
        make().steps()


def test_a_run_that_was_moved_is_the_same_run(make, tmp_path):
    save_all(make(), 10, 20)
    shutil.move(tmp_path / "run", tmp_path / "moved")
    assert_restores(sk.Checkpointer(tmp_path / "moved"), 20)

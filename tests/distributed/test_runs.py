"""Runs of real processes: told to stop, killed at any moment, and several on one folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import shardkeep as sk
from tests.distributed import cases_runs as cases
from tests.distributed.pool import ROOT

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}
MAX_SECONDS = 120.0


class Job:
    """Four ranks of `preempted.py` under torchrun, in a process group of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", "4", "-m", "tests.distributed.preempted", str(folder)]
        self.agent = subprocess.Popen(
            command,
            cwd=ROOT,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def pids(self) -> list[int]:
        """Of the ranks, once all of them train."""
        self.wait_for(lambda: len(list(self.folder.glob("ready-*.json"))) == 4, "four ranks train")
        return [said["pid"] for said in self.said("ready")]

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + MAX_SECONDS
        while not condition():
            assert self.agent.poll() is None, f"not {what}: {self.output()}"
            assert time.monotonic() < deadline, f"not {what} in time"
            time.sleep(0.01)

    def said(self, name: str) -> list[dict[str, Any]]:
        paths = [self.folder / f"{name}-{rank}.json" for rank in range(4)]
        return [json.loads(path.read_text()) for path in paths]

    def steps(self) -> list[int]:
        return sk.Checkpointer(self.folder / "run").steps()

    def output(self) -> str:
        return self.agent.communicate(timeout=MAX_SECONDS)[0][-4000:]

    def end(self) -> None:
        if self.agent.poll() is None:
            os.killpg(self.agent.pid, signal.SIGKILL)
            self.agent.communicate()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path)
    yield job
    job.end()


def assert_saved_together(job: Job) -> list[int]:
    """The steps that all ranks saved, the last of them to stop; it is there, and it is whole."""
    done = job.said("done")
    assert all(one["stopping"] for one in done)
    saved, last = done[0]["saved"], done[0]["saved"][-1]
    assert [one["saved"] for one in done] == [saved] * 4
    assert job.steps()[-1] == last
    state = sk.load(job.folder / "run" / f"step-{last:08d}")
    assert state["step"] == last
    for rank in range(4):
        # Each step adds the number of ranks.
        assert state["own"][f"rank{rank}"].unique().tolist() == [4.0 * last] == done[rank]["value"]
    return saved


def test_a_signal_to_one_rank_is_answered_by_all_at_the_same_step(job):
    pids = job.pids()
    os.kill(pids[1], signal.SIGUSR1)
    job.wait_for(lambda: len(job.steps()) == 1, "saved after SIGUSR1")
    os.kill(pids[2], signal.SIGTERM)
    output = job.output()
    assert job.agent.returncode == 0, output
    saved = assert_saved_together(job)
    assert len(saved) == 2
    assert "SIGUSR1: saving" in output
    assert f"SIGTERM: saving a checkpoint at step {saved[1]}" in output


def test_a_job_all_of_whose_processes_are_told_to_stop_saves_first(job):
    job.pids()
    # As schedulers do it: to torchrun and to each rank, which hears of it from torchrun again.
    os.killpg(job.agent.pid, signal.SIGTERM)
    output = job.output()
    assert len(assert_saved_together(job)) == 1
    # torchrun itself says that it was signalled.
    assert job.agent.returncode != 0, output


def test_ranks_find_and_drop_the_same_checkpoints(pool4, tmp_path):
    found = pool4.run(cases.a_run, root=str(tmp_path / "run"))

    for one in found:
        assert one["empty"] == ["ok", 0]
        assert one["steps"] == [10, 30, 40, 50]
        assert one["newest"] == ["ok", 50]
        assert one["best"] == ["ok", 10]
        assert one["missing"][0].endswith("NotFoundError")
        assert "no step 20; there are [10, 30, 40, 50]" in one["missing"][1]
        assert one["damaged"][0].endswith("CorruptError")
        assert "step 50 is damaged" in one["damaged"][1]
        assert one["fallback"] == ["ok", 40]
        assert one["prune"] == found[0]["prune"]


def test_a_bad_argument_of_one_rank_fails_on_all_and_does_not_part_them(pool4, tmp_path):
    found = pool4.run(cases.a_bad_argument_of_one_rank, root=str(tmp_path / "run"))

    for rank, (first, second, last) in enumerate(found):
        for kind, said in (first, second):
            assert kind == ("InvalidError" if rank == 2 else "RemoteInvalidError")
            assert "the metric 'loss' is no number" in said
        assert last == ["ok", [3]]


def test_a_timer_saves_at_the_same_steps_on_all_ranks(pool4, tmp_path):
    found = pool4.run(cases.a_timer, root=str(tmp_path / "run"))

    assert len(found[0]) == 3
    assert found == [found[0]] * 4


def run_program(name: str, *arguments: str, seconds: float) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", f"tests.distributed.{name}", *arguments],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) | {"stderr": done.stderr[-4000:]} for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("shared")
    found = run_program("shared_runs", str(folder), seconds=MAX_SECONDS)
    return {one["jobs"]: one for one in found}


def test_two_jobs_that_save_into_one_run_lose_nothing(shared):
    found = shared["two_savers"]
    assert found["fine"], found["stderr"]
    assert found["steps"] == found["whole"] == list(range(1, 81))
    assert found["others"] == []


def test_two_jobs_that_drop_each_others_steps_keep_the_newest_of_both(shared):
    found = shared["two_savers_that_drop"]
    assert found["fine"], found["stderr"]
    assert found["steps"] == found["whole"]
    assert found["steps"][-3:] == [78, 79, 80]
    assert found["others"] == []


def test_a_job_that_restores_while_another_drops_steps_always_gets_a_whole_one(shared):
    found = shared["a_saver_that_drops_and_readers"]
    assert found["fine"], found["stderr"]
    assert found["steps"] == found["whole"] == [160]
    assert found["others"] == []

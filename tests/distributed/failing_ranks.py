"""What do the ranks that are left do when one dies or stalls at a certain point of a save?

A program, as torn_overwrite is: all scenarios run at once, each on four forked ranks of its own,
since nearly all of their time is waiting. It prints what became of every rank and of the folder.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import shardkeep as sk
from shardkeep.transfer import save as save_module
from shardkeep.transfer.council import StoreCouncil
from tests.distributed.torn_overwrite import connect, fork, keep_store, state_of, version_of

SIZE = 4
TIMEOUT = 10.0
MAX_SECONDS = 60.0


@dataclass(frozen=True)
class Scenario:
    """`signal` hits `rank` just before or after it calls `at` of the save's module."""

    name: str
    rank: int
    at: str
    signal: int
    after: bool = False
    own_store: bool = False
    """The signal goes to the Store's process."""


SCENARIOS = [
    Scenario("killed before the plan", 2, "SaveView", signal.SIGKILL),
    Scenario("killed before the write", 2, "write_files", signal.SIGKILL),
    Scenario("killed during the write", 2, "header_written", signal.SIGKILL),
    Scenario("killed after the write", 2, "write_files", signal.SIGKILL, after=True),
    Scenario("stopped in the write", 2, "write_files", signal.SIGSTOP),
    Scenario("chair killed before the write", 0, "write_files", signal.SIGKILL),
    Scenario("chair killed before the commit", 0, "commit", signal.SIGKILL),
    Scenario("chair killed after the commit", 0, "commit", signal.SIGKILL, after=True),
    Scenario("chair stopped before the commit", 0, "commit", signal.SIGSTOP),
    Scenario("the store killed", 2, "write_files", signal.SIGKILL, own_store=True),
]


@dataclass
class Run:
    """A scenario under way."""

    scenario: Scenario
    path: Path
    store_pid: int
    port: int
    pids: list[int] = field(default_factory=list[int])
    logs: list[int] = field(default_factory=list[int])

    def save(self, rank: int, version: int, *, timeout: float, port: int | None = None) -> None:
        torch.set_num_threads(1)
        store = connect(port or self.port)
        council = StoreCouncil(
            store, range(SIZE), rank, topic=f"{self.path}/{version}", timeout=timeout
        )
        sk.save(
            state_of(version, rank),
            self.path,
            overwrite=True,
            durable=False,
            metadata={"version": version, "size": SIZE},
            group=council,
        )

    def fail(self, rank: int) -> None:
        """The save in which it happens; what this rank raised goes to its log."""
        start = time.monotonic()
        try:
            with struck(self.scenario if rank == self.scenario.rank else None, self.store_pid):
                self.save(rank, 2, timeout=TIMEOUT)
            told = ["", "", ""]
        except Exception as error:
            told = [type(error).__name__, str(error), str(time.monotonic() - start)]
        os.write(self.logs[rank], json.dumps(told).encode())
        os._exit(0)


class struck:  # noqa: N801
    """The signal, at its place; nothing for the other ranks."""

    def __init__(self, scenario: Scenario | None, store_pid: int) -> None:
        self._scenario = scenario
        self._store_pid = store_pid
        self._patch: Any = None

    def __enter__(self) -> None:
        scenario = self._scenario
        if scenario is None:
            return
        if scenario.at == "header_written":
            from shardkeep.storage.local_sink import LocalSink

            self._patch = mock.patch.object(LocalSink, "finish", self._wrap(LocalSink.finish))
        else:
            act = getattr(save_module, scenario.at)
            self._patch = mock.patch.object(save_module, scenario.at, self._wrap(act))
        self._patch.__enter__()

    def __exit__(self, *error: object) -> None:
        if self._patch is not None:
            self._patch.__exit__(*error)

    def _wrap(self, act: Callable[..., Any]) -> Callable[..., Any]:
        def strike(*args: Any, **kwargs: Any) -> Any:
            scenario = self._scenario
            assert scenario is not None
            if not scenario.after:
                self._strike(scenario)
            made = act(*args, **kwargs)
            if scenario.after:
                self._strike(scenario)
            return made

        return strike

    def _strike(self, scenario: Scenario) -> None:
        os.kill(self._store_pid if scenario.own_store else os.getpid(), scenario.signal)


def start_store() -> tuple[int, int]:
    source, target = os.pipe()
    pid = fork(lambda: keep_store(target), sys.stderr.fileno())
    port = struct.unpack("i", os.read(source, 4))[0]
    os.close(source)
    os.close(target)
    return pid, port


def save_everywhere(run: Run, version: int, port: int) -> None:
    """A save by four new ranks that goes through."""

    def act(rank: int) -> None:
        run.save(rank, version, timeout=MAX_SECONDS, port=port)
        os._exit(0)

    pids = [fork(lambda rank=rank: act(rank), sys.stderr.fileno()) for rank in range(SIZE)]
    statuses = [os.waitpid(pid, 0)[1] for pid in pids]
    assert statuses == [0] * SIZE, statuses
    assert version_of(run.path) == version


def begin(run: Run) -> None:
    run.logs = [os.memfd_create("log") for _ in range(SIZE)]
    run.pids = [fork(lambda rank=rank: run.fail(rank), sys.stderr.fileno()) for rank in range(SIZE)]


def end(run: Run) -> dict[str, Any]:
    """What each rank said, and what the folder holds."""
    others = [rank for rank in range(SIZE) if rank != run.scenario.rank]
    deadline = time.monotonic() + MAX_SECONDS
    for rank in others:
        _wait(run.pids[rank], deadline)
    found = version_of(run.path)
    if run.scenario.signal == signal.SIGSTOP:
        os.kill(run.pids[run.scenario.rank], signal.SIGCONT)
    _wait(run.pids[run.scenario.rank], deadline)
    said = [os.pread(log, 1 << 16, 0).decode() for log in run.logs]
    return {
        "name": run.scenario.name,
        "ranks": [json.loads(text) if text else None for text in said],
        "found": found,
        "found_at_last": version_of(run.path),
    }


def _wait(pid: int, deadline: float) -> None:
    while os.waitpid(pid, os.WNOHANG)[0] == 0:
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise AssertionError("a rank waits for ever")
        time.sleep(0.01)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    store_pid, port = start_store()
    runs: list[Run] = []
    for number, scenario in enumerate(SCENARIOS):
        own = start_store() if scenario.own_store else (store_pid, port)
        runs.append(Run(scenario, folder / str(number), *own))
    for run in runs:
        save_everywhere(run, 1, port)
    for run in runs:
        begin(run)
    for run in runs:
        outcome = end(run)
        save_everywhere(run, 3, port)
        print(json.dumps(outcome), flush=True)
    os.kill(store_pid, signal.SIGKILL)


if __name__ == "__main__":
    main()

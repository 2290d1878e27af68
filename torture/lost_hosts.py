"""What is left when a host dies or is cut off, at each point of a save on the hosts' own disks?

Two hosts of two ranks each: network namespaces with a cable between them, and a disk for each. Step
1 is everywhere. At a point of step 2 a host is struck. Whoever is left knows the outcome or raises
in time; then a job is started on the same hosts, on the one that is left and a fresh one, or on
that one alone. It restores step 1 or 2, bit for bit, and nothing that anybody was told is lost.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import shardkeep as sk
from torture.campaign import Say, Scale, Tally, replay
from torture.hangs import Board
from torture.networks import Hosts, cannot_network, two_hosts
from torture.processes import MEMORY, c10d, connect, fork, kill, start_store, warm
from torture.strikes import (
    CHAIR_POINTS,
    OTHER_HOST_POINTS,
    POINTS,
    SPREAD_POINTS,
    UPLOAD_CHAIR_POINTS,
    striking,
)

SIZE = 4
_ITEMS = 40_001
_START_SECONDS = 60.0
_AT_ONCE = 4
_SHORT = 6
_STRUCK, _CUT, _PORT, _GO = SIZE, SIZE + 1, SIZE + 2, SIZE + 3
_POINTS = (*POINTS, *OTHER_HOST_POINTS, *SPREAD_POINTS, *CHAIR_POINTS, *UPLOAD_CHAIR_POINTS)
How = Literal["kill", "cut"]
Then = Literal["same", "fresh", "alone"]


@dataclass(frozen=True)
class Limits:
    """How long ranks wait, and how late they may be."""

    timeout: float
    slack: float
    patience: float = 90.0


_LIMITS = {"short": Limits(5.0, 30.0), "long": Limits(4.0, 3.0)}


@dataclass(frozen=True)
class Scenario:
    """Which host is struck, where and how, and on which hosts the run goes on."""

    how: How
    host: int
    point: str
    then: Then

    @property
    def name(self) -> str:
        return f"{self.how}:host-{self.host}:{self.point}:{self.then}".replace(" ", "-")

    @property
    def striker(self) -> int:
        """The rank that comes to the point: the first of the host, unless the chair must."""
        is_chair = self.point in CHAIR_POINTS or self.point in UPLOAD_CHAIR_POINTS
        return 0 if is_chair else 2 * self.host


def scenarios() -> list[Scenario]:
    """Every one that is asked about."""
    found: list[Scenario] = []
    thens: Sequence[Then] = ("same", "fresh", "alone")
    for number, point in enumerate(_POINTS):
        # Only the host that the chair is not on has to put the manifest there.
        for host in (1,) if point in OTHER_HOST_POINTS else (0, 1):
            for how in ("kill", "cut"):
                # All three after each point; each by itself would take three times as long.
                then = thens[(number + host + (how == "cut")) % 3]
                found.append(Scenario(how, host, point, then))
                if how == "kill":
                    found.append(Scenario(how, host, point, "fresh"))
    return list(dict.fromkeys(found))


def state_of(version: int) -> dict[str, Any]:
    """A part on each rank, however many there are, and a part that all have."""
    mesh = init_device_mesh("cpu", (c10d.get_world_size(),))
    whole = torch.arange(_ITEMS) + version * 10_000_000
    return {
        "own": distribute_tensor(whole, mesh, [Shard(0)], src_data_rank=None),
        "common": whole[::7].clone(),
        "version": version,
    }


def version_of(state: dict[str, Any]) -> int:
    """The version that a state is of, every byte of it compared; AssertionError for a mixture."""
    version = state["version"]
    truth = state_of(version)
    assert torch.equal(state["own"].to_local(), truth["own"].to_local()), "own is not whole"
    assert torch.equal(state["common"], truth["common"]), "common is not whole"
    return version


class Job:
    """Ranks on hosts, each host with a disk; `disks` are by host."""

    def __init__(self, disks: Sequence[Path], slow: Path, limits: Limits, net: Hosts) -> None:
        self.disks = disks
        self.slow = slow
        self.limits = limits
        self.net = net
        self.size = 2 * len(disks)
        self.board = Board()
        self.logs = [os.memfd_create("log") for _ in range(self.size)]
        self.pids: list[int] = []

    def start(self, act: Callable[[Job, int], None]) -> None:
        self._store_pid, port = start_store(lambda: self.net.enter(0))
        self.board.set(_PORT, port)
        self.pids = [fork(lambda rank=rank: self._be(rank, act), 2) for rank in range(self.size)]
        self.started = time.monotonic()

    def _be(self, rank: int, act: Callable[[Job, int], None]) -> None:
        self.net.enter(rank // 2)
        os.environ["GLOO_SOCKET_IFNAME"] = "cable"
        store = connect(int(self.board.get(_PORT)), self.net.address)
        c10d.init_process_group("gloo", store=store, rank=rank, world_size=self.size)
        try:
            act(self, rank)
        except Exception as error:
            ours = isinstance(error, sk.ShardkeepError)
            self.say(rank, error=f"{type(error).__name__}: {error}", ours=ours)

    def run_of(self, rank: int) -> sk.Checkpointer:
        return sk.Checkpointer(
            self.slow,
            local=self.disks[rank // 2],
            peer_copies=True,
            durable=False,
            timeout=self.limits.timeout,
        )

    def say(self, rank: int, **said: Any) -> None:
        os.write(self.logs[rank], json.dumps(said | {"at": time.monotonic()}).encode() + b"\n")

    def said(self, rank: int) -> list[dict[str, Any]]:
        text = os.pread(self.logs[rank], 1 << 16, 0).decode()
        return [json.loads(line) for line in text.splitlines()]

    def is_over(self, rank: int) -> bool:
        return any("error" in one or "end" in one for one in self.said(rank))

    def has_said(self, rank: int, what: str) -> bool:
        return any(what in one for one in self.said(rank))

    def wait(self, ranks: Sequence[int]) -> str | None:
        """What is wrong: a rank that does not come to an end."""
        while not all(self.is_over(rank) for rank in ranks):
            if time.monotonic() > self.started + self.limits.patience:
                late = [rank for rank in ranks if not self.is_over(rank)]
                return f"ranks {late} wait for ever; {[self.said(rank) for rank in ranks]}"
            time.sleep(0.01)
        return None

    def close(self) -> None:
        kill([*self.pids, self._store_pid])
        for pid in (*self.pids, self._store_pid):
            os.waitpid(pid, 0)
        for log in self.logs:
            os.close(log)


class Run:
    """A scenario under way."""

    def __init__(self, scenario: Scenario, limits: Limits, folder: Path) -> None:
        self.scenario = scenario
        self.limits = limits
        self.folder = folder
        self._resources = ExitStack()

    def start(self) -> None:
        self.net = self._resources.enter_context(two_hosts())
        disks = [self.folder / "disk-0", self.folder / "disk-1"]
        self.job = Job(disks, self.folder / "slow", self.limits, self.net)
        self.job.start(self._train)

    def _train(self, job: Job, rank: int) -> None:
        """Step 1, everywhere; then step 2, with a strike in it."""
        run = job.run_of(rank)
        run.save(1, state_of(1))
        run.wait()
        job.board.set(rank, 1.0)
        job.board.wait(_GO)
        strikes = rank == self.scenario.striker
        with striking(self.scenario.point, self._strike) if strikes else ExitStack():
            run.save(2, state_of(2))
            job.say(rank, saved=2)
            run.wait()
            job.say(rank, uploaded=2)
            run.close()
        job.say(rank, end=True)

    def _strike(self) -> None:
        self.job.board.set(_STRUCK, time.monotonic())
        self.job.board.wait(_CUT)

    def step(self) -> bool:
        """Do what is due; True once all who are to end have ended, or are too late."""
        board = self.job.board
        if not board.get(_GO) and all(board.get(rank) for rank in range(SIZE)):
            board.set(_GO, 1.0)
        if board.get(_STRUCK) and not board.get(_CUT):
            if self.scenario.how == "cut":
                self.net.cut()
            else:
                kill([self.job.pids[rank] for rank in self._on(self.scenario.host)])
            board.set(_CUT, 1.0)
        late = time.monotonic() > self.job.started + self.limits.patience
        return late or all(self.job.is_over(rank) for rank in self._alive())

    def _on(self, host: int) -> list[int]:
        return [2 * host, 2 * host + 1]

    def _alive(self) -> list[int]:
        return [*range(SIZE)] if self.scenario.how == "cut" else self._on(1 - self.scenario.host)

    def judge(self) -> str | None:
        """What is wrong; None if nothing is. Ends all processes."""
        try:
            return self._judge()
        except (sk.ShardkeepError, AssertionError) as error:
            return f"{type(error).__name__}: {error}".replace("\n", " ")
        finally:
            self._resources.close()

    def _judge(self) -> str | None:
        job = self.job
        wrong = self._wrong_of_ranks()
        saved = any(job.has_said(rank, "saved") for rank in range(SIZE))
        uploaded = any(job.has_said(rank, "uploaded") for rank in range(SIZE))
        job.close()
        if wrong:
            return wrong
        # The cable is mended, and what was struck is gone for good, or comes back.
        with two_hosts() as net:
            return self._restore(net, must_have=2 if self._must_be_there(saved, uploaded) else 1)

    def _must_be_there(self, saved: bool, uploaded: bool) -> bool:
        return uploaded or (saved and self.scenario.then == "same")

    def _wrong_of_ranks(self) -> str | None:
        job = self.job
        struck = job.board.get(_STRUCK)
        if not struck:
            return f"nobody came to the point: {[job.said(rank) for rank in range(SIZE)]}"
        for rank in self._alive():
            if not job.is_over(rank):
                return f"rank {rank} waits for ever: {job.said(rank)}"
            last = job.said(rank)[-1]
            if "error" in last and not last["ours"]:
                return f"rank {rank} raises what is no error of ours: {last['error']}"
            # A save, its copies and its upload: each has a deadline of its own.
            if last["at"] - struck > 3 * self.limits.timeout + self.limits.slack:
                return f"rank {rank} ends {last['at'] - struck:.1f} s after the strike"
        return None

    def _restore(self, net: Hosts, *, must_have: int) -> str | None:
        left = 1 - self.scenario.host
        disks = [self.folder / "disk-0", self.folder / "disk-1"]
        if self.scenario.then == "fresh":
            disks[self.scenario.host] = self.folder / "disk-fresh"
        elif self.scenario.then == "alone":
            disks = [disks[left]]
        job = Job(disks, self.folder / "slow", Limits(30.0, 30.0), net)
        job.start(_restore)
        try:
            wrong = job.wait(range(job.size))
            found = [one for rank in range(job.size) for one in job.said(rank)]
        finally:
            job.close()
        if wrong:
            return wrong
        if errors := [one["error"] for one in found if "error" in one]:
            return f"the restore fails: {errors[0]}"
        versions = {one["version"] for one in found if "version" in one}
        if len(versions) != 1:
            return f"ranks restore different steps: {versions}"
        (version,) = versions
        return None if version >= must_have else f"step {version} comes back, {must_have} was there"


def _restore(job: Job, rank: int) -> None:
    run = job.run_of(rank)
    state = state_of(0)
    step = run.restore(state)
    version = version_of(state)
    assert step == version, f"step {step} holds version {version}"
    run.wait()
    assert step in run.steps(), f"step {step} was not brought to the slow tier"
    run.save(3, state_of(3))
    run.wait()
    again = state_of(0)
    assert run.restore(again) == version_of(again) == 3
    run.close()
    job.say(rank, version=version)
    job.say(rank, end=True)


class LostHosts:
    """The campaign."""

    name = "lost-hosts"
    promise = "Whichever host dies or is cut off, and when: a step comes back whole, and no lie."

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits

    def run(self, scale: Scale, seed: int, say: Say, case: str | None = None) -> Tally:
        tally = Tally(self.name, seed)
        if why := cannot_network():
            tally.skipped = why
            return tally
        warm()
        chosen = _chosen(scale, seed, case)
        base = Path(tempfile.mkdtemp(prefix="shardkeep-hosts-", dir=MEMORY))
        limits = self._limits or _LIMITS[scale]
        for start in range(0, len(chosen), _AT_ONCE):
            batch = chosen[start : start + _AT_ONCE]
            runs = [Run(one, limits, base / str(start + at)) for at, one in enumerate(batch)]
            for run in runs:
                run.start()
            left = runs
            while left := [run for run in left if not run.step()]:
                time.sleep(0.002)
            for run in runs:
                wrong = run.judge()
                tally.cases += 1
                if wrong:
                    name = run.scenario.name
                    tally.violations.append(f"{name}: {wrong}  {replay(self.name, seed, name)}")
            say(f"{tally.cases} of {len(chosen)}, {len(tally.violations)} violations")
        shutil.rmtree(base)
        return tally


def _chosen(scale: Scale, seed: int, case: str | None) -> list[Scenario]:
    everything = scenarios()
    if case is not None:
        return [one for one in everything if one.name == case]
    if scale == "long":
        return everything
    return random.Random(seed).sample(everything, _SHORT)

"""What do the ranks that are left do when one hangs, dies or is cut off, at each point of a save?

They come to one outcome or none, and whoever is alive knows it or raises in time, naming the rank
and the phase. Four ranks overwrite version 1 with version 2; at a point of its save a rank is
stopped, killed or slow, or its host is cut off, or the process that serves the Store is struck.
Then all that was stopped goes on, which must not bring about another outcome.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import re
import shutil
import signal
import struct
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import shardkeep as sk
from shardkeep.transfer.council import StoreCouncil
from torture.campaign import Say, Scale, Tally, replay
from torture.networks import Hosts, cannot_network, two_hosts
from torture.processes import LOCALHOST, MEMORY, c10d, connect, fork, kill, start_store, warm
from torture.strikes import CHAIR_POINTS, POINTS, striking
from torture.versions import prune_all, save_version, version_of

SIZE = 4
_ITEMS = 512
_START_SECONDS = 60.0
_AT_ONCE = 10
_SHORT = 10
How = Literal["stop", "kill", "slow", "very slow", "cut", "restart"]
Host = Literal["apart", "rank 0"]


@dataclass(frozen=True)
class Limits:
    """How long ranks wait, and how late they may be."""

    timeout: float
    slack: float
    patience: float = 60.0
    """After so long a rank is said to wait for ever."""


# The long run has the machine to itself. A test shares it with others, and looks only for hangs.
_LIMITS = {"short": Limits(4.0, 30.0), "long": Limits(3.0, 2.0)}


@dataclass(frozen=True)
class Scenario:
    """Who is struck, where and how."""

    how: How
    rank: int
    """Which comes to the point."""
    point: str
    store: Host = "apart"
    """Who serves the Store: a process of its own, or rank 0."""
    hits_store: bool = False
    """The Store's process is struck, not the rank."""

    @property
    def name(self) -> str:
        target = "store" if self.hits_store else "in-rank-0" if self.store == "rank 0" else "rank"
        return f"{self.how}:{target}:{self.rank}:{self.point}".replace(" ", "-")

    @property
    def is_stopped(self) -> bool:
        return self.how == "stop"

    @property
    def struck_ranks(self) -> set[int]:
        """Who need not come to an end in time."""
        hard = self.how in ("stop", "kill", "restart")
        return {self.rank} if hard and not self.hits_store else set()

    @property
    def named(self) -> str:
        """What the others must name."""
        by_rank = f"ranks? ([0-9]+[-,] ?)*{self.rank}\\b"
        if self.how == "cut":
            return "Store does not answer|ranks? (2|3|2-3) |rank 0 has not answered"
        if self.hits_store or (self.store == "rank 0" and self.rank == 0):
            return f"Store does not answer|{by_rank}"
        return by_rank


def scenarios() -> list[Scenario]:
    """Every one that is asked about."""
    return [
        *_of_ranks(),
        *(Scenario(how, 0, point, store="rank 0") for how in _HARD for point in _STORE_POINTS),
        *(Scenario(how, 2, point, hits_store=True) for how in _HARD for point in _STORE_POINTS[:3]),
        *(Scenario("cut", 0, point) for point in (*POINTS, *CHAIR_POINTS)),
        *(Scenario("cut", 2, point) for point in ("before the write", "after its report")),
        Scenario("slow", 2, "before the write"),
        Scenario("slow", 0, "before the commit"),
        Scenario("very slow", 2, "before the write"),
        Scenario("restart", 2, "before it leaves"),
    ]


_HARD: Sequence[How] = ("stop", "kill")
_STORE_POINTS = ("before the plan", "before the write", "after its report", "after the commit")


def _of_ranks() -> Iterator[Scenario]:
    for how in _HARD:
        for rank in range(SIZE):
            for point in (*POINTS, *(CHAIR_POINTS if rank == 0 else ())):
                yield Scenario(how, rank, point)


class Board:
    """Memory that the ranks of a scenario share: who is ready, when the strike fell, the port."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 8 * (SIZE + 4))

    def get(self, at: int) -> float:
        return struct.unpack_from("d", self._memory, 8 * at)[0]

    def set(self, at: int, value: float) -> None:
        struct.pack_into("d", self._memory, 8 * at, value)

    def wait(self, at: int) -> float:
        deadline = time.monotonic() + _START_SECONDS
        while not self.get(at):
            if time.monotonic() > deadline:
                raise AssertionError("the others did not come")
            time.sleep(0.0005)
        return self.get(at)


_STRUCK, _CUT, _PORT, _GO = SIZE, SIZE + 1, SIZE + 2, SIZE + 3


class Run:
    """A scenario under way, in a folder of its own."""

    def __init__(self, scenario: Scenario, limits: Limits, path: Path) -> None:
        self.scenario = scenario
        self.limits = limits
        self.path = path
        self.board = Board()
        self.logs = [os.memfd_create("log") for _ in range(SIZE)]
        self.hosts: Hosts | None = None
        self._resources = ExitStack()
        self._store_pid = 0

    def start(self) -> None:
        """Save version 1, then begin with version 2 on all ranks."""
        save_version(1, self.path, None, size=1, items=_ITEMS)
        if self.scenario.how == "cut":
            self.hosts = self._resources.enter_context(two_hosts())
        if self.scenario.store == "apart":
            self._store_pid, port = start_store(lambda: self._enter_host(0))
            self.board.set(_PORT, port)
        self.pids = [fork(lambda rank=rank: self._be_rank(rank, 2), 2) for rank in range(SIZE)]
        self.started = time.monotonic()

    def _enter_host(self, rank: int) -> None:
        if self.hosts is not None:
            self.hosts.enter(rank // 2)

    def _be_rank(self, rank: int, version: int) -> None:
        """Save; what came of it goes to the rank's log."""
        self._enter_host(rank)
        store = self._store(rank)
        self.board.set(rank, 1.0)
        if version == 2:
            self.board.wait(_GO)
        strikes = rank == self.scenario.rank and version == 2
        try:
            with striking(self.scenario.point, self._strike) if strikes else ExitStack():
                self._save(store, rank, version)
            said: dict[str, Any] = {"kind": ""}
        except Exception as error:
            said = {
                "kind": type(error).__name__,
                "text": str(error),
                "undone": bool(getattr(error, "undone", False)),
                "ours": isinstance(error, sk.ShardkeepError),
            }
        os.write(self.logs[rank], json.dumps(said | {"at": time.monotonic()}).encode())

    def _store(self, rank: int) -> Any:
        if self.scenario.store == "rank 0" and rank == 0:
            store = c10d.TCPStore(LOCALHOST, 0, None, True, wait_for_workers=False)
            self.board.set(_PORT, store.port)
            return store
        host = self.hosts.address if self.hosts is not None else LOCALHOST
        return connect(int(self.board.wait(_PORT)), host)

    def _save(self, store: Any, rank: int, version: int) -> None:
        topic, timeout = f"{self.path.name}/{version}", self.limits.timeout
        council = StoreCouncil(store, range(SIZE), rank, topic=topic, timeout=timeout)
        save_version(version, self.path, council, size=SIZE, items=_ITEMS)

    def _strike(self) -> None:
        scenario = self.scenario
        self.board.set(_STRUCK, time.monotonic())
        if scenario.how in ("slow", "very slow"):
            time.sleep((0.4 if scenario.how == "slow" else 2.0) * self.limits.timeout)
        elif scenario.how == "cut":
            self.board.wait(_CUT)
        else:
            number = signal.SIGSTOP if scenario.how == "stop" else signal.SIGKILL
            os.kill(self._store_pid if scenario.hits_store else os.getpid(), number)

    def step(self) -> bool:
        """Do what is due; True once every rank that is to end has ended, or is too late."""
        if not self.board.get(_GO) and all(self.board.get(rank) for rank in range(SIZE)):
            self.board.set(_GO, 1.0)
        if self.hosts is not None and self.board.get(_STRUCK) and not self.board.get(_CUT):
            self.hosts.cut()
            self.board.set(_CUT, 1.0)
        waited_for = [r for r in range(SIZE) if r not in self.scenario.struck_ranks]
        over = all(self._said(rank) is not None for rank in waited_for)
        return over or time.monotonic() > self.started + self.limits.patience

    def _said(self, rank: int) -> dict[str, Any] | None:
        text = os.pread(self.logs[rank], 1 << 16, 0).decode()
        return json.loads(text) if text else None

    def judge(self) -> str | None:
        """What is wrong; None if nothing is. Ends all processes."""
        try:
            return self._judge()
        except (sk.ShardkeepError, AssertionError) as error:
            return f"{type(error).__name__}: {error}".replace("\n", " ")
        finally:
            self._close()

    def _judge(self) -> str | None:
        first = version_of(self.path)
        wrong = self._wrong_of_ranks(first)
        if wrong:
            return wrong
        if self.scenario.is_stopped:
            self._wake_up()
        last = version_of(self.path)
        if self._is_undone() and last != 1:
            return f"version {last} is there, after a rank was told that nothing was committed"
        if self._acks() and last != 2:
            return f"version {last} is there, though ranks {self._acks()} know better"
        if last < first:
            return f"version {last} is there, and {first} was"
        if self.scenario.how == "restart":
            return self._start_again()
        prune_all(self.path)
        save_version(3, self.path, None, size=1, items=_ITEMS)
        assert version_of(self.path) == 3
        return None

    def _wrong_of_ranks(self, found: int) -> str | None:
        scenario = self.scenario
        for rank in range(SIZE):
            said = self._said(rank)
            if said is None:
                if rank not in scenario.struck_ranks:
                    return f"rank {rank} waits for ever"
                continue
            if not said["kind"]:
                if found != 2:
                    return f"rank {rank} says that it is saved, and version {found} is there"
                continue
            if scenario.how == "slow":
                return f"rank {rank} does not bear a slow one: {said['text']}"
            if wrong := self._wrong_error(rank, said):
                return f"{wrong}: {said['kind']}: {said['text']}".replace("\n", " ")
        return None

    def _wrong_error(self, rank: int, said: dict[str, Any]) -> str | None:
        if not said["ours"]:
            return f"rank {rank} raises what is no error of ours"
        if rank in self.scenario.struck_ranks or (
            self.scenario.how == "very slow" and rank == self.scenario.rank
        ):
            return None
        seconds = said["at"] - self.board.get(_STRUCK)
        if seconds > self.limits.timeout + self.limits.slack:
            return f"rank {rank} raises {seconds:.1f} s after the strike"
        if not re.search(self.scenario.named, said["text"]):
            return f"rank {rank} does not name who is gone"
        if not re.search(r"\b(plan|views|agree|write|commit)\b", said["text"]):
            return f"rank {rank} does not name the phase"
        return None

    def lateness(self) -> float:
        """How many seconds after its deadline the last rank raised."""
        others = [rank for rank in range(SIZE) if rank != self.scenario.rank]
        times = [said["at"] for rank in others if (said := self._said(rank)) and said["kind"]]
        struck = self.board.get(_STRUCK)
        return max([0.0, *(at - struck - self.limits.timeout for at in times)])

    def _acks(self) -> list[int]:
        return [rank for rank in range(SIZE) if (self._said(rank) or {}).get("kind") == ""]

    def _is_undone(self) -> bool:
        errors = [said for rank in range(SIZE) if (said := self._said(rank)) and said["kind"]]
        return any(one["undone"] or "nothing was committed" in one["text"] for one in errors)

    def _wake_up(self) -> None:
        stopped = [self._store_pid] if self.scenario.hits_store else [self.pids[self.scenario.rank]]
        kill(stopped, signal.SIGCONT)
        deadline = time.monotonic() + self.limits.patience
        while any(self._said(rank) is None for rank in range(SIZE)):
            assert time.monotonic() < deadline, "a rank that was stopped does not come to an end"
            time.sleep(0.002)

    def _start_again(self) -> str | None:
        """A rank that was killed comes again, to a save that the others have long ended."""
        save_version(3, self.path, None, size=1, items=_ITEMS)
        rank = self.scenario.rank
        self.pids.append(fork(lambda: self._come_again(rank), 2))
        deadline = time.monotonic() + self.limits.patience
        while (said := self._said(rank)) is None and time.monotonic() < deadline:
            time.sleep(0.002)
        if said is None:
            return "a rank that was started again waits for ever"
        if not said["kind"]:
            return "a rank that was started again takes an old save for its own"
        found = version_of(self.path)
        return None if found == 3 else f"version {found} is there, after 3 was saved"

    def _come_again(self, rank: int) -> None:
        store = self._store(rank)
        try:
            self._save(store, rank, 2)
            said = {"kind": ""}
        except sk.ShardkeepError as error:
            said = {"kind": type(error).__name__}
        os.write(self.logs[rank], json.dumps(said | {"at": time.monotonic()}).encode())

    def _close(self) -> None:
        pids = [*self.pids, *([self._store_pid] if self._store_pid else [])]
        kill(pids)
        for pid in pids:
            os.waitpid(pid, 0)
        self._resources.close()
        for log in self.logs:
            os.close(log)


class Hangs:
    """The campaign."""

    name = "hangs"
    promise = "Whoever hangs, dies or is cut off: one outcome at most, and nobody waits past it."

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits

    def run(self, scale: Scale, seed: int, say: Say, case: str | None = None) -> Tally:
        tally = Tally(self.name, seed)
        warm()
        chosen = _chosen(scale, seed, case)
        if why := cannot_network():
            tally.facts["without partitions"] = why
            chosen = [one for one in chosen if one.how != "cut"]
        base = Path(tempfile.mkdtemp(prefix="shardkeep-hangs-", dir=MEMORY))
        latest = 0.0
        for start in range(0, len(chosen), _AT_ONCE):
            batch = chosen[start : start + _AT_ONCE]
            for run in _runs(batch, self._limits or _LIMITS[scale], base, start):
                latest = max(latest, run.lateness())
                wrong = run.judge()
                tally.cases += 1
                if wrong:
                    name = run.scenario.name
                    tally.violations.append(f"{name}: {wrong}  {replay(self.name, seed, name)}")
            say(f"{tally.cases} of {len(chosen)}, {len(tally.violations)} violations")
        shutil.rmtree(base)
        tally.facts["seconds past the deadline, at most"] = round(latest, 2)
        return tally


def _chosen(scale: Scale, seed: int, case: str | None) -> list[Scenario]:
    everything = scenarios()
    if case is not None:
        return [one for one in everything if one.name == case]
    if scale == "long":
        return everything
    dice = random.Random(seed)
    # One of each kind, and others by chance.
    kinds: dict[object, Scenario] = {}
    for one in dice.sample(everything, len(everything)):
        kinds.setdefault((one.how, one.store, one.hits_store), one)
    return dice.sample([*kinds.values()], min(_SHORT, len(kinds)))


def _runs(batch: Sequence[Scenario], limits: Limits, base: Path, number: int) -> Iterator[Run]:
    """Scenarios whose ranks have ended; they run side by side, since they mostly wait."""
    runs = [Run(one, limits, base / str(number + at)) for at, one in enumerate(batch)]
    for run in runs:
        run.start()
    while runs:
        over = [run for run in runs if run.step()]
        runs = [run for run in runs if run not in over]
        yield from over
        time.sleep(0.002)

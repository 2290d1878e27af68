"""What may happen in a simulated world? Jobs, the faults that befall them, and one run of it all.

The protocol's code is the real one: planning, council, writing, commit. Simulated are time, the
Store, the folder and the processes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache, lru_cache
from random import Random
from typing import Any
from unittest.mock import patch

import torch

from shardkeep.layouts import Layout, Mesh, Split
from shardkeep.manifest import DictNode, TensorNode
from shardkeep.plan import Entry
from shardkeep.state.frozen import Memory
from shardkeep.state.keeping import KeptState
from shardkeep.transfer import council, planning, save, write
from shardkeep.transfer.commit import MANIFEST
from shardkeep.transfer.council import StoreCouncil
from shardkeep.transfer.progress import Meter
from shardkeep.transfer.save import SaveOptions, Timings, run_save
from torture.sim_disk import Disk, DiskClient, File
from torture.sim_judge import Attempt, Judge
from torture.sim_processes import Fault, Hub, Process
from torture.sim_store import Partition, SimStore, StoreClient

_STEPS = 32
"""About as many steps has a rank's save."""
_KINDS = ("die before", "die in flight", "die after", "stall", "interrupt", "trouble", "trouble")


@dataclass(frozen=True)
class Moment:
    """A process dies, or stalls for some seconds, at a moment of its own."""

    rank: int
    when: float
    stall: float
    """0: it dies."""


@dataclass(frozen=True)
class Job:
    """Ranks that save together."""

    name: str
    ranks: Sequence[int]
    """Those that start; the job has `world` of them."""
    world: int
    store: int
    first_topic: int
    saves: int
    overwrite: bool
    starts: Sequence[float]
    faults: dict[tuple[int, int], Fault] = field(default_factory=dict[tuple[int, int], Fault])
    """By rank and step."""
    moments: Sequence[Moment] = ()
    killed_at: float | None = None


@dataclass(frozen=True)
class Scenario:
    """A world, drawn from a seed."""

    jobs: Sequence[Job]
    state: str
    """`alike`: all ranks share a view; `apart`: none do; `diverged`: replicas differ."""
    timeout: float
    store_latency: float
    disk_latency: float
    hosts: Sequence[int | None]
    """Of each Store: the rank of the first job with it that keeps it; None: nobody who fails."""
    partitions: Sequence[Partition] = ()
    is_there: bool = False
    """A checkpoint is there before."""
    delay: float = 0.0
    """How much later others see a file; infinite: never, as on a disk of a node's own."""


def draw(seed: int, number: int, *, large: bool = False) -> Scenario:
    """The world of this number."""
    dice = Random(f"{seed}/{number}")
    world = dice.randrange(1000, 1100) if large else dice.choice((2, 3, 3, 4, 5))
    timeout = 3.0 if large else dice.choice((0.3, 0.6, 1.5))
    kind = dice.choices(("one", "two", "again", "rank again"), (6, 2, 1, 1))[0]
    jobs = _jobs(dice, "one" if large else kind, world, timeout)
    stores = max(job.store for job in jobs) + 1
    state = dice.choices(("alike", "apart", "diverged"), (6, 3 if world < 10 else 0, 1))[0]
    names = [f"{jobs[0].name}{rank}" for rank in range(world)]
    partitions: list[Partition] = []
    if dice.random() < 0.1:
        start = dice.uniform(0, timeout)
        cut = dice.sample(names, dice.randint(1, world - 1))
        partitions.append(Partition(start, start + dice.expovariate(1 / timeout), cut))
    return Scenario(
        jobs,
        state,
        timeout,
        store_latency=1e-5 if large else dice.choice((5e-5, 5e-4)),
        disk_latency=dice.choice((1e-4, 5e-3)),
        hosts=[dice.choice((None, None, 0, dice.randrange(world))) for _ in range(stores)],
        partitions=partitions,
        is_there=dice.random() < 0.4,
        delay=dice.choice((dice.uniform(0, 0.05), float("inf"))) if dice.random() < 0.05 else 0.0,
    )


def _jobs(dice: Random, kind: str, world: int, timeout: float) -> list[Job]:
    overwrite = dice.random() < 0.6
    saves = 2 if dice.random() < 0.3 else 1
    first = Job(
        "a",
        range(world),
        world,
        0,
        0,
        saves,
        overwrite,
        _starts(dice, world, timeout),
        _faults(dice, world, timeout),
        _moments(dice, world, timeout),
    )
    if kind == "one":
        return [first]
    if kind == "two":
        starts = _starts(dice, world, timeout)
        faults = _faults(dice, world, timeout) if dice.random() < 0.3 else {}
        return [first, Job("b", range(world), world, 1, 0, saves, overwrite, starts, faults)]
    again = dice.uniform(0, 2 * timeout) if dice.random() < 0.3 else dice.uniform(0, 0.05)
    if kind == "again":
        # The whole job is killed and starts anew; its Store may have outlived it.
        killed = Job(**{**vars(first), "killed_at": again})
        starts = [again + dice.uniform(0, 0.01) for _ in range(world)]
        store = dice.choice((0, 0, 1))
        return [killed, Job("b", range(world), world, store, 0, saves, True, starts)]
    # One process is killed and starts anew, while the others go on.
    rank = dice.randrange(world)
    killed = Job(**{**vars(first), "moments": (*first.moments, Moment(rank, again, 0.0))})
    starts = [again + dice.uniform(0, 0.05)] * world
    return [killed, Job("b", [rank], world, 0, 0, saves, overwrite, starts)]


def _starts(dice: Random, world: int, timeout: float) -> list[float]:
    starts = [dice.uniform(0, 0.01) for _ in range(world)]
    if dice.random() < 0.1:
        starts[dice.randrange(world)] += dice.uniform(0, 3 * timeout)
    return starts


def _faults(dice: Random, world: int, timeout: float) -> dict[tuple[int, int], Fault]:
    faults: dict[tuple[int, int], Fault] = {}
    for _ in range(dice.choices((0, 1, 2, 3), (3, 5, 3, 1))[0]):
        rank = 0 if dice.random() < 0.4 else dice.randrange(world)
        seconds = dice.choice((dice.uniform(0, 0.1), dice.uniform(0, 3 * timeout)))
        fault = Fault(dice.choice(_KINDS), dice.randrange(12), seconds)
        faults[rank, dice.randint(1, _STEPS)] = fault
    return faults


def _moments(dice: Random, world: int, timeout: float) -> list[Moment]:
    if dice.random() > 0.15:
        return []
    stall = dice.choice((0.0, dice.uniform(0, 3 * timeout)))
    return [Moment(dice.randrange(world), dice.uniform(0, 2 * timeout), stall)]


# What is saved


@lru_cache(maxsize=16)
def states(kind: str, world: int) -> list[KeptState]:
    """What each rank brings: a tensor cut over all ranks, and one that all have."""
    return [_state(kind, world, rank) for rank in range(world)]


def _state(kind: str, world: int, rank: int) -> KeptState:
    shape = (world * 2,)
    cut = Layout.on_mesh(shape, Mesh((world,), tuple(range(world))), [Split(0)])
    entries = {"cut": Entry("F32", shape, cut), "all": Entry("F32", (3,), None)}
    memory: dict[str, Sequence[Memory]] = {
        "cut": [torch.arange(2.0) + rank],
        "all": [torch.arange(3.0) + (rank == 1 and kind == "diverged")],
    }
    if kind == "apart":
        entries[f"own{rank}"] = Entry("F32", (2,), None)
        memory[f"own{rank}"] = [torch.full((2,), float(rank))]
    tree = DictNode(tuple((key, TensorNode(number)) for number, key in enumerate(entries)))
    return KeptState(tree, entries, memory)


# A run


class SimCouncil(StoreCouncil):
    """A real council, whose waits the judge looks at."""

    def watch(self, judge: Judge, process: Process, join: Callable[[], Attempt]) -> SimCouncil:
        self._judge, self._process, self._join = judge, process, join
        self.attempt = join()
        self.gave_up: tuple[float, float] | None = None
        return self

    def _has_seat(self) -> bool:
        is_new = self._seat is None
        has_seat = super()._has_seat()
        if is_new:
            # Since it began to prepare, all others may have left: then it comes to something new.
            self.attempt = self._join()
        return has_seat

    @contextmanager
    def _watched(self, what: str) -> Generator[None]:
        start, stalled = self._process.hub.now, self._process.stalled_seconds
        try:
            yield
        finally:
            if self._process.alive:
                self._judge.waited(self._process, self.attempt, what, start, stalled)

    def hear(self, phase: str, *, word: bytes = b"") -> bytes:
        with self._watched(f"hear {phase}"):
            return super().hear(phase, word=word)

    def collect(self, phase: str, ranks: Sequence[int] | None = None, *, word: bytes = b"") -> Any:
        with self._watched(f"collect {phase}"):
            return super().collect(phase, ranks, word=word)

    def fail(self, phase: str, error: BaseException, *, undone: bool) -> None:
        if self._process.alive:
            self.gave_up = self._process.hub.now, self._process.stalled_seconds
            self.attempt.failed.add(self.me)
        super().fail(phase, error, undone=undone)


class World:
    """A scenario as it comes about."""

    def __init__(self, scenario: Scenario, dice: Random, *, trace: bool = False) -> None:
        self.scenario = scenario
        self.hub = Hub(trace)
        self.judge = Judge(
            self.hub,
            timeout=scenario.timeout,
            overwrites=any(job.overwrite for job in scenario.jobs),
        )
        self._dice = dice
        self._save_ids = 0
        self._disks: dict[str, Disk] = {}
        self.stores = [
            SimStore(
                dice,
                latency=scenario.store_latency,
                patience=0.4,
                partitions=scenario.partitions,
                watch=self._noted,
            )
            for _ in scenario.hosts
        ]
        self.processes: list[Process] = []
        self._store_of: dict[Process, int] = {}
        self._attempt_of: dict[Process, Attempt] = {}
        self._named: dict[Process, str] = {}
        """The save id that a process chose last."""
        self._group_of: dict[Process, str] = {}
        """A process that starts anew comes back to what its job does."""
        self._attempts: dict[str, Attempt] = {}
        for job in scenario.jobs:
            self._add_job(job)

    def run(self) -> list[str]:
        """What was wrong."""
        with world_in_place(self):
            self.hub.run()
        for number, store in enumerate(self.stores):
            users = [p for p in self.processes if self._store_of[p] == number]
            self.judge.closed(users, store)
        return self.judge.violations

    def new_save_id(self) -> str:
        """As the engine's, for whoever's code runs."""
        self._save_ids += 1
        save_id = f"{self._save_ids:016x}"
        if self.hub.current is not None:
            self._named[self.hub.current] = save_id
            self.judge.named(self._attempt_of[self.hub.current], save_id)
        return save_id

    def disk_of(self, process: Process) -> Disk:
        """The folder that a process sees; where nothing is shared, its own."""
        scenario = self.scenario
        key = process.name if scenario.delay == float("inf") else ""
        if key not in self._disks:
            delay = 0.0 if key else scenario.delay
            disk = Disk(
                self._dice, latency=scenario.disk_latency, delay=delay, watch=self.judge.changed
            )
            if scenario.is_there:
                for name, data in earlier().items():
                    disk.put(name, File(bytearray(data), None, is_complete=True))
            self._disks[key] = disk
        return self._disks[key]

    def _noted(self, process: Process, key: str, note: bytes | None) -> None:
        topic, _, what = key.partition("/")
        name = f"{self._group_of[process]}:{topic}"
        if what == "left/count" and note is None:
            # All have left, and who comes to this topic now comes to something new.
            self._attempts.pop(name, None)
        if what == "failed/note" and note is not None and name in self._attempts:
            self.judge.failure_noted(self._attempts[name], note)

    def _joined(self, process: Process, job: Job, number: int) -> Attempt:
        """What a process has a part in from now on; the save id that it chose goes with it."""
        attempt, before = self._attempt(process, job, number), self._attempt_of.get(process)
        self._attempt_of[process] = attempt
        if before is not None and before is not attempt and before.name == attempt.name:
            save_id = self._named.get(process, "")
            if save_id in before.save_ids:
                before.save_ids.remove(save_id)
                self.judge.named(attempt, save_id)
        return attempt

    def _attempt(self, process: Process, job: Job, number: int) -> Attempt:
        """What the ranks of a job do together for the save of this number."""
        group = self._group_of[process]
        name = f"{group}:save{number}"
        if name not in self._attempts:
            mates: dict[int, list[Process]] = {rank: [] for rank in range(job.world)}
            for mate in self.processes:
                if self._store_of[mate] == job.store:
                    mates[int(mate.name[1:])].append(mate)
            self._attempts[name] = Attempt(
                name,
                self.stores[job.store],
                self.scenario.state == "diverged",
                mates,
                self._attempts.get(f"{group}:save{number - 1}"),
            )
        return self._attempts[name]

    def _add_job(self, job: Job) -> None:
        for rank in job.ranks:
            process = self._make_process(job, rank)
            self.processes.append(process)
            self._store_of[process] = job.store
            self._group_of[process] = job.name if len(job.ranks) == job.world else "a"
            host = self.scenario.hosts[job.store]
            if rank == host and self.stores[job.store].host is None:
                self.stores[job.store].host = process
            start = job.starts[rank]
            process.start(start)
            process.afflicted = start > 0.05
            if job.killed_at is not None:
                self.hub.at(job.killed_at, None, process.kill)
        for moment in job.moments:
            process = self.processes[moment.rank]
            act = process.kill if not moment.stall else lambda p=process, m=moment: p.stall(m.stall)
            self.hub.at(moment.when, None, act)

    def _make_process(self, job: Job, rank: int) -> Process:
        faults = {step: fault for (who, step), fault in job.faults.items() if who == rank}
        process = Process(
            self.hub, f"{job.name}{rank}", lambda: self._main(job, rank, process), faults
        )
        return process

    def _main(self, job: Job, rank: int, process: Process) -> None:
        for number in range(job.first_topic, job.first_topic + job.saves):
            self._save(job, rank, process, number)

    def _save(self, job: Job, rank: int, process: Process, number: int) -> None:
        store, judge, topic = self.stores[job.store], self.judge, f"save{number}"
        table = SimCouncil(
            StoreClient(store, process),
            range(job.world),
            rank,
            topic=topic,
            timeout=self.scenario.timeout,
            clock=process,
        ).watch(judge, process, lambda: self._joined(process, job, number))
        storage = DiskClient(self.disk_of(process), process)
        kept = states(self.scenario.state, job.world)[rank]
        options = SaveOptions(job.overwrite, 1, "all", {}, _METER)
        try:
            outcome = run_save(
                lambda: (kept, storage.open()), table, options, Timings(clock=process.monotonic)
            )
        except (Exception, KeyboardInterrupt) as error:
            self.hub.say(process, f"raises {type(error).__name__}: {error}")
            judge.failed(process, rank, table.attempt, error)
            if table.gave_up is not None:
                judge.ended(process, *table.gave_up)
        else:
            self.hub.say(process, f"returns from {topic}")
            judge.succeeded(process, table.attempt, outcome)


_METER = Meter("saving", None, show=False)


class _InPlace:
    """A pool of no threads: what is submitted is done at once."""

    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> _InPlace:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, act: Any, *arguments: Any) -> Any:
        return _Done(act(*arguments))


@dataclass(frozen=True)
class _Done:
    found: Any

    def result(self) -> Any:
        return self.found


@contextmanager
def world_in_place(world: World) -> Generator[None]:
    """The engine takes names from the world, and no threads."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(planning, "new_save_id", world.new_save_id))
        # Fewer questions while nothing happens: they are most of what a simulation costs.
        stack.enter_context(patch.object(council, "_LONGEST_PAUSES", (0.1, 0.1)))
        stack.enter_context(patch.object(write, "ThreadPoolExecutor", _InPlace))
        stack.enter_context(patch.object(save.socket, "gethostname", lambda: "host"))
        yield


@cache
def earlier() -> dict[str, bytes]:
    """The files of a checkpoint that was there before."""
    job = Job("z", [0, 1], 2, 0, 0, 1, False, (0.0, 0.0))
    world = World(Scenario([job], "alike", 1.0, 1e-4, 1e-4, [None]), Random(0))
    world._save_ids = 0xEA000
    if world.run():
        raise RuntimeError(f"a save without faults fails: {world.judge.violations}")
    files = world.disk_of(world.processes[0]).files
    if MANIFEST not in files:
        raise RuntimeError("a save without faults commits nothing")
    return {name: bytes(file.data) for name, file in files.items()}

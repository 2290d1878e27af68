"""W6: what does a save in the background cost the training that goes on meanwhile?

One process computes in a loop, changes its state at every step, and saves it now and then. Measured
are the time for which a call blocks the loop, the time until the checkpoint is complete, and how
long the loop's steps take meanwhile; beside a warm copy of the same bytes by two threads, steps
without a save, and a save that is waited for. First saves are those of fresh processes. At the end
everyone saves once more while the state changes: what comes back must be the state of the call.
"""

import gc
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import torch

from benchmarks.asked import Asked
from benchmarks.contenders.background import (
    CACHED,
    COPY_ON_WRITE,
    BackgroundContender,
    Prepared,
    Wait,
    background_contenders,
)
from benchmarks.contenders.own import Shardkeep
from benchmarks.figures import OURS, Figure
from benchmarks.places import TMPFS, folder_on, level_the_field, remove
from benchmarks.ranks import on_ranks
from benchmarks.state_dicts import Shapes
from benchmarks.stored_states import State, large, nbytes_of
from benchmarks.turns import in_short, in_turn

NAME = "W6"
TITLE = "Saves in the background, 2 GiB, one process, tmpfs"
SETTING = "tmpfs"
FIRST, LATER, TOTAL, STEP = "blocked, first save", "blocked", "until complete", "step meanwhile"
COPY, QUIET, SYNC = "warm copy, 2 threads", "no save", f"{OURS}, waited for"
_QUIET_STEPS = 20
# All others are compared with these.
_BASE_SAMPLES = 3
_CORES = 2


@dataclass(frozen=True)
class Timed:
    """How long one act took, and when it began by the machine's clock; a mean began nowhere."""

    seconds: float
    start: float | None = None

    @classmethod
    def since(cls, start: float, stop: float | None = None) -> "Timed":
        """Until now, unless it ended before."""
        return cls((time.perf_counter() if stop is None else stop) - start, start)


Samples = dict[tuple[str, str], list[Timed]]
"""By act and contender."""


def run(asked: Asked) -> list[Figure]:
    """First and later saves of all contenders."""
    shapes = large(asked.quick)
    contenders = asked.chosen(background_contenders(asked.quick))
    samples: Samples = {}
    notes: dict[str, str] = {}
    with folder_on(TMPFS) as folder:
        for group in _apart(contenders):
            (found, failed), *_ = on_ranks(
                1,
                lambda: _Racer(shapes, folder).run(group, asked.turns(3, 2)),  # noqa: B023
            )
            notes |= failed
            for what, values in found.items():
                samples.setdefault(what, []).extend(values)
        # Later saves of what was prepared are those of everybody else.
        all_firsts = [*contenders, *asked.chosen([Prepared()])]
        samples |= _first_saves(all_firsts, shapes, folder, 2 if not asked.quick else 1, notes)
    return [
        *(_figure(*what, several) for what, several in samples.items()),
        *(Figure(NAME, SETTING, LATER, name, (), note=why) for name, why in notes.items()),
    ]


def _figure(act: str, name: str, several: Sequence[Timed]) -> Figure:
    starts = tuple(one.start for one in several if one.start is not None)
    return Figure(NAME, SETTING, act, name, tuple(one.seconds for one in several), starts=starts)


def _apart(contenders: Sequence[BackgroundContender]) -> list[list[BackgroundContender]]:
    """Those that share a process, and take turns.

    What is compared does: ours and DCP's best. A fork copies the tables of all memory that a
    process has; whoever stages in fresh memory, 2 GiB each time, slows down the next one; and what
    all stage together is more memory than there is.
    """
    first = [one for one in contenders if one.name in (OURS, CACHED)]
    forks = [one for one in contenders if one.name == COPY_ON_WRITE]
    others = [one for one in contenders if one not in (*first, *forks)]
    return [group for group in (first, others, forks) if group]


def _first_saves(
    contenders: Sequence[BackgroundContender],
    shapes: Shapes,
    folder: Path,
    repetitions: int,
    failed: dict[str, str],
) -> Samples:
    """Each in a process that has saved nothing yet but a few bytes."""
    samples: Samples = {}
    for turn in range(repetitions):
        for contender in in_turn(contenders, turn):
            if contender.name not in failed:
                (blocked,) = on_ranks(1, lambda: _Racer(shapes, folder).first(contender))  # noqa: B023
                samples.setdefault((FIRST, contender.name), []).append(blocked)
    return samples


class _Loop:
    """A step is a product of matrices, on one thread, and a change to one tensor of the state."""

    def __init__(self, state: State) -> None:
        self.a = torch.randn(768, 768)
        self.tensors = list(state.values())
        self.count = 0

    def step(self) -> float:
        start = time.perf_counter()
        self.a = torch.nn.functional.normalize(self.a @ self.a)
        self.tensors[self.count % len(self.tensors)].add_(1)
        self.count += 1
        return time.perf_counter() - start

    def quiet(self) -> Timed:
        torch.set_num_threads(1)
        return Timed(mean(self.step() for _ in range(_QUIET_STEPS)))


class _Copy:
    """A warm copy of the same bytes by two threads: what staging cannot beat."""

    def __init__(self, state: State) -> None:
        self.tensors = list(state.values())
        self.twins = [tensor.clone() for tensor in self.tensors]
        self.timed()

    def timed(self) -> Timed:
        halves = [range(first, len(self.tensors), _CORES) for first in range(_CORES)]
        torch.set_num_threads(1)
        with ThreadPoolExecutor(_CORES) as pool:
            start = time.perf_counter()
            list(pool.map(self._copy, halves))
            return Timed.since(start)

    def _copy(self, half: range) -> None:
        for index in half:
            self.twins[index].copy_(self.tensors[index])


def _ended(contender: BackgroundContender, wait: Wait) -> float:
    """When the checkpoint was complete. What follows for the next one costs steps, too."""
    wait()
    ended = time.perf_counter()
    contender.settle()
    return ended


class _Racer:
    """The process that trains."""

    def __init__(self, shapes: Shapes, folder: Path) -> None:
        self.folder = folder
        self.nbytes = nbytes_of(shapes)
        self.state: State = {
            name: torch.full(shape, float(number))
            for number, (name, shape) in enumerate(shapes.items())
        }
        self.loop = _Loop(self.state)
        self.samples: Samples = {}
        self.notes: dict[str, str] = {}

    def run(
        self, contenders: Sequence[BackgroundContender], repetitions: int
    ) -> tuple[Samples, dict[str, str]]:
        ready = [one for one in contenders if self._can(one, self._warm_up)]
        # What ours are compared with is measured beside them.
        copy = _Copy(self.state) if any(one.name == OURS for one in contenders) else None
        for turn in range(-1, repetitions):
            # The first turn warms up: first saves are measured in other processes.
            if turn == 0:
                self.samples.clear()
            if copy is not None:
                self._measure_base(copy)
            for contender in in_turn(ready, turn):
                if not self._can(contender, self._measure):
                    ready.remove(contender)
        for contender in ready:
            self._can(contender, self._prove)
        return self.samples, self.notes

    def _measure_base(self, copy: _Copy) -> None:
        for _ in range(_BASE_SAMPLES):
            self._keep(LATER, COPY, copy.timed())
            self._keep(STEP, QUIET, self.loop.quiet())
        self._keep(TOTAL, SYNC, self._wait_for_save())

    def first(self, contender: BackgroundContender) -> Timed:
        self._warm_up(contender)
        contender.make_ready(self.state)
        self._measure(contender)
        remove(self.folder / "checkpoint")
        return self.samples[LATER, contender.name][0]

    def _keep(self, act: str, name: str, timed: Timed) -> None:
        self.samples.setdefault((act, name), []).append(timed)

    def _can(
        self, contender: BackgroundContender, act: Callable[[BackgroundContender], None]
    ) -> bool:
        """Do it; if one of the others fails at it, keep what it said."""
        try:
            act(contender)
        except Exception as error:
            if not contender.is_peer:
                raise
            self.notes[contender.name] = in_short(error)
            for what in [what for what in self.samples if what[1] == contender.name]:
                del self.samples[what]
            return False
        finally:
            remove(self.folder / "checkpoint")
        return True

    def _warm_up(self, contender: BackgroundContender) -> None:
        """Load the code that will run."""
        contender.prepare()
        path = self.folder / "warm"
        contender.begin({"a": torch.ones(8)}, path)()
        remove(path)

    def _wait_for_save(self) -> Timed:
        path = self.folder / "checkpoint"
        level_the_field(self.nbytes)
        start = time.perf_counter()
        Shardkeep().save(self.state, path)
        timed = Timed.since(start)
        remove(path)
        return timed

    def _measure(self, contender: BackgroundContender) -> None:
        path = self.folder / "checkpoint"
        gc.collect()
        level_the_field(self.nbytes)
        blocked, total, steps = self._save(contender, path)
        self._keep(LATER, contender.name, blocked)
        self._keep(TOTAL, contender.name, total)
        if steps:
            self._keep(STEP, contender.name, Timed(mean(steps)))

    def _save(self, contender: BackgroundContender, path: Path) -> tuple[Timed, Timed, list[float]]:
        steps: list[float] = []
        # The call may use all cores; the loop has one.
        torch.set_num_threads(_CORES)
        start = time.perf_counter()
        wait = contender.begin(self.state, path)
        blocked = Timed.since(start)
        torch.set_num_threads(1)
        # In a thread: the loop must not stop to ask.
        with ThreadPoolExecutor(1) as pool:
            ended = pool.submit(_ended, contender, wait)
            while not ended.done():
                steps.append(self.loop.step())
            return blocked, Timed.since(start, ended.result()), steps

    def _prove(self, contender: BackgroundContender) -> None:
        """What was saved is the state of the call, whatever the loop changed since."""
        path = self.folder / "checkpoint"
        expected = {name: float(tensor.view(-1)[0]) for name, tensor in self.state.items()}
        self._save(contender, path)
        found: State = {name: torch.zeros_like(one) for name, one in self.state.items()}
        contender.foreground.load(found, path)
        wrong = [name for name, one in found.items() if not bool((one == expected[name]).all())]
        if wrong:
            raise AssertionError(f"{wrong[0]} was saved as the loop changed it after the call")

"""Do ranks agree, commit and give up as they must, whatever dies, stalls or is lost on the way?

Each seed is a world of simulated ranks, Stores, folders and faults, in virtual time, in which the
real code of a save runs. `--case N` prints all that happens in the world of that number.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from random import Random

from torture.campaign import Say, Scale, Tally, replay
from torture.sim_world import World, draw, earlier

_WORLDS = {"short": 1_500, "long": 1_000_000}
_BATCH = 250
_LARGE_EVERY = {"short": 1_500, "long": 4_000}


@dataclass
class Found:
    """What a batch of worlds came to."""

    worlds: int = 0
    violations: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    """With the number of the world."""
    counts: Counter[str] = field(default_factory=Counter[str])


class Simulation:
    """The campaign."""

    name = "simulation"
    promise = "Whatever dies, stalls or is lost, a save is committed whole or not, and all know."

    def run(self, scale: Scale, seed: int, say: Say, case: str | None = None) -> Tally:
        tally = Tally(self.name, seed)
        if case is not None:
            self._replay(case, seed, say, tally)
            return tally
        counts: Counter[str] = Counter()
        for found in _in_processes(scale, seed):
            tally.cases += found.worlds
            counts += found.counts
            for number, wrong in found.violations:
                told = replay(self.name, seed, _named(number, scale))
                tally.violations.append(f"{wrong}  {told}")
            if tally.cases % (40 * _BATCH) == 0:
                say(f"{tally.cases:,} worlds, {len(tally.violations)} violations")
        tally.facts.update(counts)
        return tally

    def _replay(self, case: str, seed: int, say: Say, tally: Tally) -> None:
        number, _, size = case.partition(":")
        world = made(seed, int(number), is_large=size == "large", trace=True)
        violations = world.run()
        for line in world.hub.trace or ():
            say(line)
        tally.cases = 1
        tally.violations += violations


def made(seed: int, number: int, *, is_large: bool = False, trace: bool = False) -> World:
    """The world of this number, before anything happens in it."""
    return World(draw(seed, number, large=is_large), Random(f"{seed}:{number}"), trace=trace)


def is_large(number: int, scale: Scale) -> bool:
    """Whether the world of this number has more than a thousand ranks."""
    return (number + 1) % _LARGE_EVERY[scale] == 0


def _named(number: int, scale: Scale) -> str:
    return f"{number}:large" if is_large(number, scale) else str(number)


def run_batch(seed: int, scale: Scale, first: int) -> Found:
    """What happens in the worlds from this number on."""
    earlier()
    found = Found()
    for number in range(first, min(first + _BATCH, _WORLDS[scale])):
        world = made(seed, number, is_large=is_large(number, scale))
        found.violations += [(number, wrong) for wrong in world.run()]
        found.worlds += 1
        found.counts["worlds with a commit"] += bool(world.judge.commits)
        found.counts["ranks"] += len(world.processes)
        found.counts["of them returned"] += world.judge.returned
        found.counts["worlds of 1,000 ranks"] += is_large(number, scale)
    return found


def _in_processes(scale: Scale, seed: int) -> Iterator[Found]:
    earlier()
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("fork")) as pool:
        yield from pool.map(partial(run_batch, seed, scale), range(0, _WORLDS[scale], _BATCH))

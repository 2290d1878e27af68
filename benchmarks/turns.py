"""How long did an act take on each rank, and on all of them together?"""

import gc
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch.distributed as dist

from benchmarks.figures import Figure

T = TypeVar("T")
WRITTEN = "written by each rank"


@dataclass(frozen=True)
class Span:
    """One act on one rank. The processes of one machine share its clock."""

    start: float
    stop: float
    cpu_seconds: float


class Turns:
    """The spans of this rank by act and contender, one for each repetition; and who failed."""

    def __init__(self) -> None:
        self.spans: dict[tuple[str, str], list[Span]] = {}
        self.failures: dict[tuple[str, str], str] = {}
        self.written: dict[str, int] = {}
        """Bytes that this rank wrote, by contender, of those who tell."""

    def timed(self, act: str, contender: str, call: Callable[[], object]) -> None:
        """Run `call` on all ranks at once and keep when it started and stopped here."""
        gc.collect()
        dist.barrier()
        start, cpu = time.perf_counter(), time.process_time()
        call()
        span = Span(start, time.perf_counter(), time.process_time() - cpu)
        self.spans.setdefault((act, contender), []).append(span)
        dist.barrier()


def in_turn(contenders: Sequence[T], turn: int) -> list[T]:
    """In an order of its own in each turn, the same on all ranks: nobody always follows another."""
    return random.Random(turn).sample(contenders, len(contenders))


def in_short(error: Exception) -> str:
    """Why a contender did not take part."""
    lines = str(error).strip().splitlines() or [""]
    if isinstance(error, ModuleNotFoundError):
        return "not installed"
    return f"{type(error).__name__}: {lines[-1][:160]}"


def figures_of(workload: str, setting: str, by_rank: Sequence[Turns]) -> list[Figure]:
    """Each turn lasts from the first rank's start to the last rank's end."""
    made: list[Figure] = []
    for act, name in by_rank[0].spans:
        turns = list(zip(*(turns.spans[act, name] for turns in by_rank), strict=True))
        starts = tuple(min(s.start for s in one) for one in turns)
        stops = (max(s.stop for s in one) for one in turns)
        seconds = tuple(stop - start for start, stop in zip(starts, stops, strict=True))
        cpu = tuple(sum(s.cpu_seconds for s in one) for one in turns)
        made.append(Figure(workload, setting, act, name, seconds, "s", cpu, starts=starts))
    for (act, name), why in by_rank[0].failures.items():
        made.append(Figure(workload, setting, act, name, (), note=why))
    if len(by_rank) > 1:
        for name in by_rank[0].written:
            shares = tuple(float(turns.written[name]) for turns in by_rank)
            made.append(Figure(workload, setting, WRITTEN, name, shares, "bytes"))
    return made

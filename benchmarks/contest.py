"""How do PyTorch and shardkeep compare at one task: same result, how long, how much memory?"""

import gc
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.peaks import peak_nbytes
from benchmarks.ranks import on_ranks

CONTENDERS = ("torch", "shardkeep")


class Case(ABC):
    """One task on inputs that each rank makes for itself."""

    task: str
    size: str
    ranks: int = 4

    @abstractmethod
    def prepare(self) -> None:
        """Make this rank's inputs."""

    def reset(self) -> None:  # noqa: B027  most need none
        """Make the inputs again what they were; not measured."""

    @abstractmethod
    def theirs(self) -> object:
        """PyTorch's way."""

    @abstractmethod
    def ours(self) -> object:
        """Our way."""

    @abstractmethod
    def outcome(self, result: Any) -> Sequence[torch.Tensor]:
        """What this rank has afterwards, to compare."""

    @abstractmethod
    def tiny(self) -> "Case":
        """The same task, so small that it needs no memory: it loads the code that will run."""


@dataclass(frozen=True)
class Figures:
    """One contender at one task."""

    seconds: float
    """Median of the repetitions, each from the first rank's start to the last rank's end."""
    fastest: float
    slowest: float
    peak_nbytes: int
    """What the call took at its peak beyond what was there before, all ranks together."""
    peak_nbytes_of_one: int
    """The same on the rank that took most."""


@dataclass(frozen=True)
class Contest:
    """Both contenders at one task."""

    task: str
    size: str
    torch: Figures
    shardkeep: Figures

    @property
    def speedup(self) -> float:
        """How many times faster shardkeep is."""
        return self.torch.seconds / self.shardkeep.seconds

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"speedup": self.speedup}


def compare(case: Case, repetitions: int, memory_repetitions: int) -> Contest:
    """The figures of both contenders, after a check that they produce the same."""
    by_rank = on_ranks(case.ranks, lambda: _race(case, repetitions))
    peaks = {
        name: [
            on_ranks(case.ranks, lambda name=name: _peak_nbytes(case, name))
            for _ in range(memory_repetitions)
        ]
        for name in CONTENDERS
    }
    figures = [_figures([rank[name] for rank in by_rank], peaks[name]) for name in CONTENDERS]
    return Contest(case.task, case.size, *figures)


Span = tuple[float, float]


def _figures(spans_by_rank: Sequence[Sequence[Span]], peaks: Sequence[Sequence[int]]) -> Figures:
    # The processes of one machine share its clock.
    seconds = [
        max(end for _, end in spans) - min(start for start, _ in spans)
        for spans in zip(*spans_by_rank, strict=True)
    ]
    return Figures(
        median(seconds),
        min(seconds),
        max(seconds),
        # The least: whatever else happens in a process only adds.
        min(sum(of_ranks) for of_ranks in peaks),
        min(max(of_ranks) for of_ranks in peaks),
    )


def _race(case: Case, repetitions: int) -> dict[str, list[Span]]:
    """When each repetition of each contender started and ended here."""
    case.prepare()
    _require_equal(case)
    spans: dict[str, list[Span]] = {name: [] for name in CONTENDERS}
    for number in range(repetitions):
        # Turn by turn, so that both meet the same weather.
        for name in CONTENDERS if number % 2 else reversed(CONTENDERS):
            spans[name].append(_timed(case, name))
    return spans


def _require_equal(case: Case) -> None:
    outcomes: list[list[torch.Tensor]] = []
    for name in CONTENDERS:
        case.reset()
        outcomes.append([t.clone() for t in case.outcome(_run(case, name))])
    pairs = zip(*outcomes, strict=True)
    if not all(torch.equal(theirs, ours) for theirs, ours in pairs):
        raise AssertionError(f"{case.task}, {case.size}: the results differ")


def _timed(case: Case, name: str) -> Span:
    case.reset()
    gc.collect()
    dist.barrier()
    start = time.perf_counter()
    result = _run(case, name)
    end = time.perf_counter()
    del result
    return start, end


def _peak_nbytes(case: Case, name: str) -> int:
    warm = case.tiny()
    for one in (warm, case):
        one.prepare()
    warm.reset()
    _run(warm, name)
    case.reset()
    return peak_nbytes(lambda: _run(case, name))


def _run(case: Case, name: str) -> object:
    return case.theirs() if name == "torch" else case.ours()

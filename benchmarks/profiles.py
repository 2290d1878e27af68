"""Where do the CPU seconds of a contender go?"""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table
from rich.text import Text

from benchmarks.figures import Figure, grouped
from benchmarks.kinds import Kind, kind_of
from benchmarks.perf import Sample, recorded, samples_of

_TOP = 8
_NAME_WIDTH = 80


@dataclass(frozen=True)
class Profile:
    """One contender at one act."""

    figure: Figure
    functions: dict[tuple[Kind, str], float]
    """CPU seconds of a turn, on average, by kind and name."""

    @property
    def turns(self) -> list[tuple[float, float]]:
        """When each started and stopped."""
        pairs = zip(self.figure.starts, self.figure.values, strict=True)
        return [(start, start + seconds) for start, seconds in pairs]

    @property
    def cpu_seconds(self) -> float:
        return sum(self.functions.values())

    def seconds_of(self, kind: Kind) -> float:
        return sum(seconds for (one, _), seconds in self.functions.items() if one is kind)

    def top(self) -> list[tuple[Kind, str]]:
        """The functions that take most."""
        return sorted(self.functions, key=lambda one: -self.functions[one])[:_TOP]


def profiled(act: Callable[[], list[Figure]]) -> tuple[list[Figure], list[Profile]]:
    """What `act` measured, and what took the time of it."""
    with tempfile.TemporaryDirectory(prefix="shardkeep-perf-") as folder:
        data = Path(folder) / "perf.data"
        figures = recorded(act, data)
        return figures, profiles_of(figures, samples_of(data))


def profiles_of(figures: Iterable[Figure], samples: Iterable[Sample]) -> list[Profile]:
    """Of the figures whose turns have a known start; the samples come in the order of time."""
    profiles = [Profile(one, {}) for one in figures if one.starts]
    for one, profile in _during(profiles, samples):
        what, turns = (kind_of(one.frames), one.name), len(profile.figure.starts)
        seconds = profile.functions.get(what, 0.0) + one.cpu_seconds / turns
        profile.functions[what] = seconds
    return profiles


def _during(
    profiles: Sequence[Profile], samples: Iterable[Sample]
) -> Iterator[tuple[Sample, Profile]]:
    """Each sample with all whose turn it was in, whichever process it is of."""
    turns = ((*turn, one) for one in profiles for turn in one.turns)
    ahead = sorted(turns, key=lambda turn: turn[0], reverse=True)
    under_way: list[tuple[float, float, Profile]] = []
    for sample in samples:
        while ahead and ahead[-1][0] <= sample.time:
            under_way.append(ahead.pop())
        under_way = [turn for turn in under_way if sample.time < turn[1]]
        yield from ((sample, profile) for _, _, profile in under_way)


def tables_of(profiles: Sequence[Profile]) -> Iterator[Table]:
    """Of each act in each setting: the kinds of work, and the functions that take most time."""
    by_figure = {one.figure: one for one in profiles}
    for (_, setting, act), figures in grouped(by_figure).items():
        several = [by_figure[one] for one in figures]
        yield _kinds(f"{setting}: {act}, ms of CPU time in a turn, all ranks together", several)
        yield _functions(f"{setting}: {act}, where most of it goes", several)


def _kinds(title: str, profiles: Sequence[Profile]) -> Table:
    kinds = [kind for kind in Kind if any(one.seconds_of(kind) for one in profiles)]
    table = _table(title, "CPU", *(kind.value for kind in kinds))
    for one in profiles:
        cells = (_cell(one.seconds_of(kind), one.cpu_seconds) for kind in kinds)
        table.add_row(one.figure.contender, f"{1e3 * one.cpu_seconds:,.1f}", *cells)
    return table


def _functions(title: str, profiles: Sequence[Profile]) -> Table:
    table = _table(title, "ms")
    for name in ("kind", "function"):
        table.add_column(name, no_wrap=True)
    for one in profiles:
        for number, (kind, name) in enumerate(one.top()):
            seconds = _cell(one.functions[kind, name], one.cpu_seconds)
            # Not markup: names may have brackets.
            function = Text(name[:_NAME_WIDTH])
            table.add_row("" if number else one.figure.contender, seconds, kind.value, function)
        table.add_section()
    return table


def _table(title: str, *numbers: str) -> Table:
    table = Table("contender", title=title)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _cell(seconds: float, whole: float) -> str:
    return f"{1e3 * seconds:,.1f} {seconds / whole:4.0%}" if seconds else ""

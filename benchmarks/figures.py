"""What does a measurement leave behind, and how is it found again?"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

OURS = "shardkeep"
RAW = "raw"
DCP = "DCP"


@dataclass(frozen=True)
class Figure:
    """One contender at one act, turn by turn; without values it could not, and `note` says why."""

    workload: str
    setting: str
    act: str
    contender: str
    values: tuple[float, ...]
    unit: str = "s"
    cpu_seconds: tuple[float, ...] = ()
    """Of all ranks together; what others do on the machine hardly changes it."""
    note: str = ""
    starts: tuple[float, ...] = ()
    """When each turn began, by the clock of the machine, if it was one act; this is not kept."""

    @property
    def median(self) -> float:
        return median(self.values)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "Figure":
        lists = {name: tuple(found[name]) for name in ("values", "cpu_seconds")}
        return cls(**{**found, **lists})

    def as_json(self) -> dict[str, Any]:
        return {name: one for name, one in asdict(self).items() if name != "starts"}


@dataclass(frozen=True)
class Figures:
    """The figures of some acts in one setting."""

    figures: Sequence[Figure]

    def at(self, workload: str, setting: str) -> "Figures":
        return self.only(lambda one: (one.workload, one.setting) == (workload, setting))

    def act(self, act: str) -> "Figures":
        return self.only(lambda one: one.act == act)

    def only(self, fits: Callable[[Figure], bool]) -> "Figures":
        return Figures([one for one in self.figures if fits(one)])

    def median(self, act: str, contender: str) -> float | None:
        """None if that was not measured."""
        for one in self.figures:
            if (one.act, one.contender) == (act, contender) and one.values:
                return one.median
        return None

    def best(self, act: str, start_of_name: str) -> float | None:
        """The least median of the contenders whose names start so."""
        several = [
            one.median
            for one in self.figures
            if one.act == act and one.contender.startswith(start_of_name) and one.values
        ]
        return min(several, default=None)


def grouped(figures: Iterable[Figure]) -> dict[tuple[str, str, str], list[Figure]]:
    """By workload, setting and act, in the order in which they come."""
    groups: dict[tuple[str, str, str], list[Figure]] = {}
    for one in figures:
        groups.setdefault((one.workload, one.setting, one.act), []).append(one)
    return groups

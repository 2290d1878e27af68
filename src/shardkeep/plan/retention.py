"""Which checkpoints of a run may go? Pure: it looks at numbers and metrics alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

from shardkeep.errors import InvalidError
from shardkeep.manifest.plain_json import Json

Best = tuple[str, Literal["min", "max"], int]
"""A metric, whether less or more of it is better, and how many to keep."""


@dataclass(frozen=True, slots=True)
class SavedStep:
    """A committed checkpoint of a run."""

    step: int
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True)
class Retention:
    """What to keep: the union of all rules; without any rule, everything.

    >>> rule = Retention(last=2, every=100)
    >>> rule.dropped([SavedStep(step) for step in (100, 150, 200, 250, 300, 350)])
    [150, 250]
    """

    last: int | None = None
    every: int | None = None
    best: Best | None = None

    def __post_init__(self) -> None:
        if self.last is not None and self.last < 1:
            raise InvalidError(f"keep_last must be at least 1, got {self.last}")
        if self.every is not None and self.every < 1:
            raise InvalidError(f"keep_every must be at least 1, got {self.every}")
        if self.best is not None:
            _check_best(self.best)

    def dropped(self, steps: Sequence[SavedStep]) -> list[int]:
        """The steps that no rule keeps; the newest is always kept."""
        if self.last is None and self.every is None and self.best is None:
            return []
        kept = {number for numbers in self.kept_by(steps).values() for number in numbers}
        return [number for number in sorted(one.step for one in steps) if number not in kept]

    def kept_by(self, steps: Sequence[SavedStep]) -> dict[str, list[int]]:
        """The steps that each rule keeps, by the rule's name; without any rule, the newest.

        >>> Retention(last=1, every=2).kept_by([SavedStep(step) for step in (1, 2, 3)])
        {'last 1': [3], 'every 2': [2]}
        """
        numbers = sorted(one.step for one in steps)
        newest = "newest" if self.last is None else f"last {self.last}"
        found = {newest: numbers[-(self.last or 1) :]}
        if self.every is not None:
            found[f"every {self.every}"] = [n for n in numbers if n % self.every == 0]
        if self.best is not None:
            metric, order, count = self.best
            found[f"best {count} by {metric}"] = ranked(steps, metric, order)[:count]
        return found

    def as_json(self) -> dict[str, Json]:
        """The rules that there are, as a checkpoint's metadata have them."""
        said = {"last": self.last, "every": self.every, "best": self.best and list(self.best)}
        return {name: rule for name, rule in said.items() if rule is not None}

    @classmethod
    def from_json(cls, said: object) -> Retention:
        """What `as_json` wrote; what makes no sense is left out."""
        rules = cast("dict[str, object]", said) if isinstance(said, dict) else {}
        last, every, best = (rules.get(name) for name in ("last", "every", "best"))
        try:
            return cls(
                last if type(last) is int else None,
                every if type(every) is int else None,
                _best_of(best),
            )
        except InvalidError:
            return cls()


def _best_of(said: object) -> Best | None:
    match said:
        case [str(metric), "min", int(count)]:
            return metric, "min", count
        case [str(metric), "max", int(count)]:
            return metric, "max", count
        case _:
            return None


def _check_best(best: Best) -> None:
    if len(best) != 3 or best[1] not in ("min", "max") or best[2] < 1:
        raise InvalidError(f"keep_best is (metric, 'min' or 'max', how many), got {best!r}")


def ranked(steps: Sequence[SavedStep], metric: str, order: Literal["min", "max"]) -> list[int]:
    """The steps that have the metric, best first; of equals the newer; never nan.

    >>> ranked([SavedStep(1, {"loss": 2.0}), SavedStep(2, {"loss": 1.0})], "loss", "min")
    [2, 1]
    """
    sign = 1 if order == "min" else -1
    known = [
        (sign * one.metrics[metric], -one.step)
        for one in steps
        if metric in one.metrics and not math.isnan(one.metrics[metric])
    ]
    return [-step for _, step in sorted(known)]

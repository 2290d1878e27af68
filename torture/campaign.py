"""What is a campaign, and what does it find?"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from shardkeep.errors import ShardkeepError

Scale = Literal["short", "long"]
Say = Callable[[str], None]


@dataclass
class Tally:
    """What a campaign found."""

    name: str
    seed: int
    cases: int = 0
    violations: list[str] = field(default_factory=list[str])
    """One line for each, with the command that replays it."""
    facts: dict[str, object] = field(default_factory=dict[str, object])
    """What else is worth telling, such as how many cases were distinct."""
    skipped: str = ""
    """Why it could not run here."""
    seconds: float = 0.0


class Campaign(Protocol):
    """A question, asked very often."""

    name: str
    promise: str
    """What must hold, in one sentence."""

    def run(self, scale: Scale, seed: int, say: Say, case: str | None = None) -> Tally:
        """Ask it as often as the scale says; with `case`, that one alone."""
        ...


def timed(campaign: Campaign, scale: Scale, seed: int, say: Say, case: str | None = None) -> Tally:
    """The tally of a campaign, with the time it took."""
    start = time.perf_counter()
    tally = campaign.run(scale, seed, say, case)
    tally.seconds = time.perf_counter() - start
    return tally


def count_rounds(
    tally: Tally,
    numbers: Iterable[int],
    run: Callable[[int], Iterable[str]],
    start_over: Callable[[], None],
    say: Say,
) -> None:
    """Run every round and add up what each found; one that goes wrong is a violation."""
    found = Counter[str]()
    for number in numbers:
        tally.cases += 1
        try:
            found.update(run(number))
        except (ShardkeepError, AssertionError) as error:
            wrong = f"{type(error).__name__}: {error}".replace("\n", " ")
            tally.violations.append(f"{wrong}  {replay(tally.name, tally.seed, str(number))}")
            start_over()
        if tally.cases % 50 == 0:
            say(f"{tally.cases} rounds, {len(tally.violations)} violations")
    tally.facts |= dict(found)


def replay(campaign: str, seed: int, case: str) -> str:
    """The command that runs one case again."""
    return f"python -m torture {campaign} --seed {seed} --case {case}"

"""What did the last long run of each campaign find?

They may run one after the other, on several days: what one found stays, in a file that is kept with
the code, until it runs again; with the day, the command and the commit that it ran at.
"""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from torture.campaign import Tally

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "torture" / "long_runs.json"
# What was measured is kept with the code, and is no change of it.
_FIGURES = ("torture/long_runs.json", "benchmarks/kept.json")


@dataclass(frozen=True)
class Ran:
    """One campaign's long run."""

    command: str
    date: str
    commit: str
    tally: Tally


def ran_now(tally: Tally, commit: str) -> Ran:
    """A run that ended just now, of the code that was there when it began."""
    command = f"python -m torture {tally.name} --seed {tally.seed}"
    return Ran(command, time.strftime("%Y-%m-%d"), commit, tally)


def keep(ran: Ran, path: Path = KEPT) -> None:
    """Put it in the place of the campaign's run before."""
    several = read(path) | {ran.tally.name: ran}
    path.parent.mkdir(exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(
        json.dumps({name: asdict(one) for name, one in several.items()}, indent=1) + "\n"
    )
    fresh.replace(path)


def read(path: Path = KEPT) -> dict[str, Ran]:
    """By campaign; empty if none has run."""
    if not path.exists():
        return {}
    found = json.loads(path.read_text())
    return {name: Ran(**{**one, "tally": Tally(**one["tally"])}) for name, one in found.items()}


def present_commit() -> str:
    """What is committed, and whether anything but the figures themselves has changed since."""
    named = _git("rev-parse", "--short=9", "HEAD")
    code = [".", *(f":!{figures}" for figures in _FIGURES)]
    changed = _git("status", "--porcelain", "--untracked-files=no", *code)
    return f"{named}-dirty" if changed else named


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()

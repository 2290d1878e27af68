"""Run campaigns: `python -m torture [NAME ...] [--short] [--seed N] [--case CASE]`.

All of them, at their long scale, unless told otherwise. What is wrong is printed with the command
that replays it; at the end comes a table. What a long run found goes to torture/long_runs.json as
soon as it ends, for `python -m torture.page`. The exit code is 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from torture.campaign import Campaign, Say, Tally, timed
from torture.campaigns import CAMPAIGNS
from torture.kept import keep, present_commit, ran_now

_SHOWN = 20


def main() -> int:
    """Run what was asked for; the exit code."""
    asked = _arguments()
    console = Console(width=None if sys.stdout.isatty() else 160)
    tallies: list[Tally] = []
    for campaign in _chosen(asked.names):
        console.print(f"[bold]{campaign.name}[/]: {campaign.promise}")
        commit = present_commit()
        tally = timed(campaign, asked.scale, asked.seed, _sayer(console), asked.case)
        for line in tally.violations[:_SHOWN]:
            console.print(f"  [red]violation[/] {line}", highlight=False)
        tallies.append(tally)
        if asked.scale == "long" and asked.case is None:
            keep(ran_now(tally, commit))
    console.print(table_of(tallies))
    return int(any(tally.violations for tally in tallies))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m torture", description=__doc__)
    parser.add_argument("names", nargs="*", help="campaigns; all if none is named")
    parser.add_argument("--short", dest="scale", action="store_const", const="short")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", help="one case of one campaign, as a violation names it")
    parser.set_defaults(scale="long")
    return parser.parse_args()


def _chosen(names: Sequence[str]) -> list[Campaign]:
    unknown = set(names) - {one.name for one in CAMPAIGNS}
    if unknown:
        known = ", ".join(one.name for one in CAMPAIGNS)
        raise SystemExit(f"no campaign is called {', '.join(sorted(unknown))}; there are {known}")
    return [one for one in CAMPAIGNS if not names or one.name in names]


def _sayer(console: Console) -> Say:
    return lambda text: console.print(f"  {text}", highlight=False, style="dim")


def table_of(tallies: Sequence[Tally]) -> Table:
    """What all campaigns found."""
    table = Table("campaign", "cases", "violations", "seconds", "seed", "also")
    for tally in tallies:
        also = ", ".join(f"{name} {value}" for name, value in tally.facts.items())
        table.add_row(
            tally.name,
            f"{tally.cases:,}",
            "skipped" if tally.skipped else str(len(tally.violations)),
            f"{tally.seconds:.0f}",
            str(tally.seed),
            tally.skipped or also,
        )
    return table


if __name__ == "__main__":
    sys.exit(main())

"""Write what the long runs found into docs/reliability.md: `python -m torture.page`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torture.campaigns import CAMPAIGNS
from torture.kept import ROOT, Ran, read
from torture.marks import put_between

PAGE = ROOT / "docs" / "reliability.md"
NAME = "torture"


def main() -> None:
    """Write the table."""
    put_between(PAGE, NAME, markdown(read(), [one.name for one in CAMPAIGNS]))


def markdown(kept: Mapping[str, Ran], names: Sequence[str]) -> str:
    """A line for each campaign, and what was wrong."""
    lines = [
        "| campaign | cases | violations | took | ran on | at commit | command | also |",
        "|---|---:|---:|---:|---|---|---|---|",
    ]
    return "\n".join([*lines, *(_line(name, kept.get(name)) for name in names)])


def _line(name: str, ran: Ran | None) -> str:
    if ran is None:
        return f"| {name} | not run yet | | | | | `python -m torture {name}` | |"
    tally = ran.tally
    also = tally.skipped or ", ".join(f"{name} {value}" for name, value in tally.facts.items())
    cells = [
        tally.name,
        f"{tally.cases:,}",
        "not run" if tally.skipped else f"{len(tally.violations):,}",
        f"{tally.seconds / 60:.1f} min",
        ran.date,
        ran.commit,
        f"`{ran.command}`",
        also.replace("|", "/"),
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()

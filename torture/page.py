"""Write what the long runs found into docs/reliability.md: `python -m torture.page`.

Takes build/torture.json, where every campaign must be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torture.campaigns import CAMPAIGNS
from torture.kept import KEPT, ROOT, Ran, read
from torture.marks import put_between

PAGE = ROOT / "docs" / "reliability.md"
NAME = "torture"


def main() -> None:
    """Write the table."""
    kept, names = read(), [one.name for one in CAMPAIGNS]
    absent = [name for name in names if name not in kept]
    if absent:
        raise SystemExit(
            f"{KEPT} lacks the long run of {', '.join(absent)}: "
            f"run python -m torture {' '.join(absent)} first"
        )
    put_between(PAGE, NAME, markdown(kept, names))


def markdown(kept: Mapping[str, Ran], names: Sequence[str]) -> str:
    """A line for each campaign, and what was wrong."""
    lines = [
        "| campaign | cases | violations | took | ran on | at commit | command | also |",
        "|---|---:|---:|---:|---|---|---|---|",
    ]
    return "\n".join([*lines, *(_line(kept[name]) for name in names)])


def _line(ran: Ran) -> str:
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

"""Ask every library: `python -m torture.peers [--quick] [--seed N] [words of a library ...]`.

Prints the table, and writes it to build/peers.json and into docs/reliability.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from torture.peers.contests import CONTESTS, Finding
from torture.peers.libraries import LIBRARIES, Library

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reliability.md"
START, STOP = "<!-- peers: start -->", "<!-- peers: stop -->"

Findings = dict[str, dict[str, Finding]]


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m torture.peers", description=__doc__)
    parser.add_argument("words", nargs="*", help="parts of names of libraries")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    warnings.filterwarnings("ignore")
    console = Console(width=None if sys.stdout.isatty() else 200)
    chosen = [
        one
        for one in LIBRARIES
        if not asked.words or any(word.lower() in one.name.lower() for word in asked.words)
    ]
    for library in chosen:
        library.prepare()
    found: Findings = {}
    for title, contest in CONTESTS.items():
        console.print(f"[bold]{title}[/]: {contest.__doc__}")
        found[title] = {}
        for library in chosen:
            finding = found[title][library.name] = contest(library, asked.seed, asked.quick)
            style = "green" if finding.good else "red"
            console.print(f"  {library.name}: [{style}]{finding.text}[/]", highlight=False)
    console.print(_table(chosen, found))
    _write(chosen, found, asked.seed, quick=asked.quick)


def _table(libraries: Sequence[Library], found: Findings) -> Table:
    table = Table("", *(f"{one.name} {one.version}" for one in libraries))
    for title, findings in found.items():
        table.add_row(title, *(findings[one.name].text for one in libraries))
    return table


def _write(libraries: Sequence[Library], found: Findings, seed: int, *, quick: bool) -> None:
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    command = f"python -m torture.peers --seed {seed}" + (" --quick" if quick else "")
    date = time.strftime("%Y-%m-%d")
    kept = {
        "command": command,
        "date": date,
        "versions": {one.name: one.version for one in libraries},
        "findings": {
            title: {name: asdict(one) for name, one in findings.items()}
            for title, findings in found.items()
        },
    }
    (build / "peers.json").write_text(json.dumps(kept, indent=2) + "\n")
    if quick or len(libraries) < len(LIBRARIES) or not PAGE.exists():
        return
    before, rest = PAGE.read_text().split(START)
    after = rest.split(STOP)[1]
    PAGE.write_text(f"{before}{START}\n{_markdown(libraries, found, command, date)}\n{STOP}{after}")


def _markdown(libraries: Sequence[Library], found: Findings, command: str, date: str) -> str:
    titles = list(found)
    lines = [
        f"Measured on {date} by `{command}`.",
        "",
        f"| library | {' | '.join(titles)} |",
        f"|---{'|---' * len(titles)}|",
    ]
    for one in libraries:
        cells = [found[title][one.name].text for title in titles]
        lines.append(f"| {one.name} {one.version} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()

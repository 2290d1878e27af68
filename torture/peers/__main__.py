"""Ask every library: `python -m torture.peers [--quick] [--seed N] [words of a library ...]`.

Prints the table and keeps it in build/peers.json; once all were asked in full, also after one
another, it is written into docs/reliability.md and README.md.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from torture.peers.contests import CONTESTS, Finding
from torture.peers.kept import Findings, keep, markdown, show
from torture.peers.libraries import LIBRARIES, Library


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
    found: dict[str, dict[str, Finding]] = {}
    for title, contest in CONTESTS.items():
        console.print(f"[bold]{title}[/]: {contest.__doc__}")
        found[title] = {}
        for library in chosen:
            finding = found[title][library.name] = contest(library, asked.seed, asked.quick)
            style = "green" if finding.good else "red"
            console.print(f"  {library.name}: [{style}]{finding.text}[/]", highlight=False)
    console.print(_table(chosen, found))
    _keep(chosen, found, asked.seed, quick=asked.quick)


def _table(libraries: Sequence[Library], found: Findings) -> Table:
    table = Table("", *(f"{one.name} {one.version}" for one in libraries))
    for title, findings in found.items():
        table.add_row(title, *(findings[one.name].text for one in libraries))
    return table


def _keep(libraries: Sequence[Library], found: Findings, seed: int, *, quick: bool) -> None:
    command = f"python -m torture.peers --seed {seed}" + (" --quick" if quick else "")
    kept = keep(command, {one.name: one.version for one in libraries}, found)
    names = [one.name for one in LIBRARIES]
    if not quick and set(names) == kept["versions"].keys():
        show(markdown(kept, names))


if __name__ == "__main__":
    main()

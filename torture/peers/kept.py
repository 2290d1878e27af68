"""What was found so far, and where is it shown?

Libraries may be asked one after the other: what was found for one stays until it is asked again,
as long as the questions are the same. The pages get the table once all were asked in full.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torture.marks import put_between
from torture.peers.contests import Finding

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "build" / "peers.json"
PAGES = (ROOT / "docs" / "reliability.md", ROOT / "README.md")
NAME = "peers"

Findings = Mapping[str, Mapping[str, Finding]]
"""By question, then by library."""
Kept = dict[str, Any]


def merged(before: Kept | None, command: str, versions: Mapping[str, str], found: Findings) -> Kept:
    """What is known after `found`: added to what was kept before, if the same command made it."""
    same = before if before is not None and before["command"] == command else None
    findings: dict[str, dict[str, Any]] = {
        title: {
            **({} if same is None else same["findings"].get(title, {})),
            **{name: asdict(one) for name, one in by_library.items()},
        }
        for title, by_library in found.items()
    }
    return {
        "command": command,
        "date": time.strftime("%Y-%m-%d"),
        "versions": {**({} if same is None else same["versions"]), **versions},
        "findings": findings,
    }


def keep(command: str, versions: Mapping[str, str], found: Findings, path: Path = KEPT) -> Kept:
    """Add what was found to the file, and return all of it."""
    before = json.loads(path.read_text()) if path.exists() else None
    kept = merged(before, command, versions, found)
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(kept, indent=2) + "\n")
    return kept


def markdown(kept: Kept, libraries: Sequence[str]) -> str:
    """The table of all libraries."""
    titles = list(kept["findings"])
    lines = [
        f"Measured on {kept['date']} by `{kept['command']}`.",
        "",
        f"| library | {' | '.join(titles)} |",
        f"|---{'|---' * len(titles)}|",
    ]
    for name in libraries:
        cells = [kept["findings"][title][name]["text"] for title in titles]
        lines.append(f"| {name} {kept['versions'][name]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def show(table: str, pages: Sequence[Path] = PAGES) -> None:
    """Put the table between the marks of the pages."""
    for page in pages:
        put_between(page, NAME, table)

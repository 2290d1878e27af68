"""Is every hostile folder refused, for the right reason, before it costs anything?

Hundreds of folders and files, each with one lie in it, are read in a process that counts its memory
and writes down what Python's audit hooks tell: no code of theirs runs, no file outside of their
folder is touched, and what they claim to be large is not believed.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torture.attacks.attack import HARMLESS, MARK, Attack
from torture.attacks.listing import ATTACKS
from torture.campaign import Say, Scale, Tally, replay

READER = "torture.hostile_reader"

_FEW_NBYTES = 24 * 2**20
"""What reading anything may take: two buffers of 8 MiB, threads, first uses."""
_LONGEST_TEXT = 3000
_SECONDS = 600

ATTACKER = f"""open({MARK!r}, "w").close()


class Payload:
    def __init__(self, *args):
        open({MARK!r}, "w").close()
"""


@dataclass(frozen=True)
class Made:
    """The attacks that could be made here."""

    paths: Mapping[str, Path]
    sizes: Mapping[str, int]
    """What each takes on disk: a hole counts for nothing, whatever it claims."""
    not_made: Sequence[str]


class Hostile:
    """The campaign. Another `reader` and other attacks are for tests."""

    name = "hostile"
    promise = "What is crafted is refused with its reason; it runs nothing and takes no memory."

    def __init__(self, reader: str = READER, attacks: Sequence[Attack] = ATTACKS) -> None:
        self._reader = reader
        self._attacks = attacks

    def run(self, scale: Scale, seed: int, say: Say, case: str | None = None) -> Tally:
        tally = Tally(self.name, seed)
        chosen = [one for one in self._attacks if case in (None, one.name)]
        with tempfile.TemporaryDirectory(prefix="shardkeep-hostile-") as home:
            made = make_all(Path(home), chosen)
            say(f"{len(made.paths)} folders and files were made")
            readings = self._read(Path(home), made.paths, scale)
            marks = [str(one) for one in Path(home).rglob(MARK)]
        tally.facts["files opened"] = readings.pop("")["opened"]
        tally.cases = len(readings)
        for attack in chosen:
            if attack.name in readings:
                wrong = judge(attack, readings[attack.name], made.sizes[attack.name])
                tally.violations += [
                    f"{attack.name}: {line}  {replay(self.name, seed, attack.name)}"
                    for line in wrong
                ]
        tally.violations += [f"code was run: it left {mark}" for mark in marks]
        if made.not_made:
            tally.facts["could not be made here"] = ", ".join(made.not_made)
        return tally

    def _read(
        self, root: Path, paths: Mapping[str, Path], scale: Scale
    ) -> dict[str, dict[str, object]]:
        """What the reader says of each folder; under "" what it says of itself."""
        done = subprocess.run(
            [sys.executable, "-m", self._reader, str(root), scale],
            input=json.dumps({name: str(path) for name, path in paths.items()}),
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
            cwd=Path(__file__).parents[1],
        )
        if done.returncode:
            raise RuntimeError(f"the reader died with {done.returncode}: {done.stderr[-3000:]}")
        lines = map(json.loads, done.stdout.splitlines())
        return {line.get("name", ""): line for line in lines}


def make_all(root: Path, attacks: Sequence[Attack]) -> Made:
    """Each attack in a folder of its own; devices, say, cannot be made everywhere."""
    for name in ("cwd", "modules", "attacks"):
        (root / name).mkdir()
    (root / "modules" / "attacker.py").write_text(ATTACKER)
    paths: dict[str, Path] = {}
    sizes: dict[str, int] = {}
    not_made: list[str] = []
    for attack in attacks:
        folder = root / "attacks" / attack.name.replace("/", "-")
        folder.mkdir()
        try:
            attack.make(folder)
        except PermissionError:
            not_made.append(attack.name)
            continue
        paths[attack.name] = folder / attack.file if attack.file else folder
        sizes[attack.name] = _disk_nbytes(folder)
    return Made(paths, sizes, not_made)


def _disk_nbytes(folder: Path) -> int:
    found = [one.stat(follow_symlinks=False) for one in folder.rglob("*")]
    return sum(min(one.st_size, 512 * one.st_blocks) for one in found)


def judge(attack: Attack, reading: Mapping[str, object], nbytes: int) -> Iterator[str]:
    """What is wrong with how an attack was met."""
    outcomes: Mapping[str, Sequence[str]] = reading["outcomes"]  # type: ignore[assignment]
    for act, outcome in outcomes.items():
        if outcome and outcome[0].startswith(("undeclared", "AssertionError")):
            yield f"{act} raised {': '.join(outcome)}"
        elif outcome and len(outcome[1]) > _LONGEST_TEXT:
            yield f"{act} raised a text of {len(outcome[1])} characters"
    decisive = "import" if attack.format == "torch" else "load"
    yield from _refused(attack, decisive, outcomes[decisive])
    allowed = 2 * nbytes + _FEW_NBYTES
    grown: int = reading["grown_nbytes"]  # type: ignore[assignment]
    if grown > allowed:
        yield f"it took {grown} bytes of memory; {allowed} are allowed for {nbytes} on disk"
    events: Sequence[str] = reading["events"]  # type: ignore[assignment]
    yield from (f"it caused {event}" for event in events)


def _refused(attack: Attack, act: str, outcome: Sequence[str]) -> Iterator[str]:
    if attack.error == HARMLESS:
        if outcome:
            yield f"{act} refused what is harmless: {': '.join(outcome)}"
    elif not outcome:
        yield f"{act} accepted it"
    elif outcome[0] not in attack.error.split("|") or not re.search(
        attack.words, outcome[1], re.DOTALL
    ):
        expected = f"{attack.error} with {attack.words!r}"
        yield f"{act} raised {': '.join(outcome)[:300]}; expected {expected}"

"""Is the folder old or new after a rank was killed at any one system call of a save?

Four processes save. A first run counts the victim's calls that write, sync, name or remove; then
each of them becomes the last thing that the victim came to, in a save of its own. What the folder
holds is looked at, cleaned up and saved to again.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardkeep.manifest import file_name
from torture.attempts import PATIENCE, SAVE_ID, SIZE, Attempt, Kind
from torture.campaign import Say, Scale, Tally, replay
from torture.processes import MEMORY, serving, warm
from torture.tracing import CALLS, cannot_trace, count_calls, inject, only

_ITEMS = 512
_SHORT = 8
_AT_ONCE = 8
# What those who are left wait for the one that was killed.
_TIMEOUT = {"short": 1.0, "long": 2.0}
_REPEATS = {"short": 1, "long": 4}


KINDS = [Kind(o, a, v) for o in (False, True) for a in (False, True) for v in (0, 2)]


@dataclass(frozen=True)
class Case:
    """The victim is killed as it enters a call for the Nth time."""

    kind: Kind
    thread: str
    """`first`: of the thread that saves; `file`: on the victim's data file, by whichever thread;
    `any`: by whichever thread comes to its Nth first."""
    call: str
    number: int

    @property
    def name(self) -> str:
        return f"{self.kind.name}:{self.thread}:{self.call}:{self.number}"

    def options(self, path: Path, what: str = "signal=KILL") -> list[str]:
        """What strace is told, for a save to `path`."""
        strike = [only([self.call]), inject(self.call, self.number, what)]
        if self.thread == "first":
            return strike
        if self.thread == "any":
            return ["-f", *strike]
        data = path / file_name(SAVE_ID, self.kind.victim, 0)
        return ["-f", "-P", str(data), *strike]


class Syscalls:
    """The campaign."""

    name = "syscalls"
    promise = "A rank killed at any system call of a save leaves the old or the new checkpoint."

    def run(self, scale: Scale, seed: int, say: Say, case: str | None = None) -> Tally:
        tally = Tally(self.name, seed)
        if why := cannot_trace():
            tally.skipped = why
            return tally
        warm()
        base = Path(tempfile.mkdtemp(prefix="shardkeep-calls-", dir=MEMORY))
        hit = 0
        with serving() as port:
            site = _Site(base, port, _TIMEOUT[scale])
            cases = site.chosen(scale, seed, case)
            for one, attempt in site.attempts(cases):
                wrong = attempt.judge() or attempt.save_again()
                tally.cases += 1
                hit += len(attempt.acks) < SIZE
                attempt.close()
                if wrong:
                    here = replay(self.name, seed, one.name)
                    tally.violations.append(f"{one.name}: {wrong}  {here}")
                if tally.cases % 50 == 0:
                    say(f"{tally.cases} of {len(cases)}, {len(tally.violations)} violations")
        shutil.rmtree(base)
        tally.facts["kills that fell"] = hit
        return tally


class _Site:
    """Where attempts are made, one folder each."""

    def __init__(self, base: Path, port: int, timeout: float) -> None:
        self._base = base
        self._port = port
        self._timeout = timeout
        self._count = 0

    def chosen(self, scale: Scale, seed: int, case: str | None) -> list[Case]:
        """What is asked; a named case is one of its kind's, so that its kind is counted alone."""
        if case is not None:
            kind = next(one for one in KINDS if case.startswith(f"{one.name}:"))
            _, _, _, thread, call, number = case.split(":")
            return [Case(kind, thread, call, int(number))]
        dice = random.Random(seed)
        kinds = KINDS if scale == "long" else dice.sample(KINDS, 2)
        cases = [one for kind in kinds for one in self._cases_of(kind)] * _REPEATS[scale]
        return cases if scale == "long" else dice.sample(cases, min(_SHORT, len(cases)))

    def _cases_of(self, kind: Kind) -> Iterator[Case]:
        first, others = self._count_calls(kind)
        if kind.is_async:
            threads = {"any": others}
        else:
            of_file = Counter({call: others[call] for call in ("pwritev", "pwritev2", "fsync")})
            threads = {"first": first, "file": of_file}
        for thread, counts in threads.items():
            for call in CALLS:
                for number in range(1, counts[call] + 1):
                    yield Case(kind, thread, call, number)

    def _count_calls(self, kind: Kind) -> tuple[Counter[str], Counter[str]]:
        log = self._base / "log"
        attempt = self._attempt(kind, PATIENCE)
        attempt.prepare()
        attempt.start(["-f", "-o", str(log), only(CALLS)])
        attempt.wait()
        wrong, acks = attempt.judge(), attempt.acks
        attempt.close()
        if wrong or len(acks) < SIZE:
            raise AssertionError(f"{kind.name} does not go through by itself: {wrong or acks}")
        return count_calls(log, attempt.pids[kind.victim])

    def _attempt(self, kind: Kind, timeout: float) -> Attempt:
        self._count += 1
        path = self._base / str(self._count) / "checkpoint"
        return Attempt(kind, path, self._port, timeout=timeout, items=_ITEMS)

    def attempts(self, cases: Sequence[Case]) -> Iterator[tuple[Case, Attempt]]:
        """Attempts that are over; a few run side by side, since those who are left mostly wait."""
        waiting, running = list(cases), list[tuple[Case, Attempt]]()
        while waiting or running:
            while waiting and len(running) < _AT_ONCE:
                running.append(self._begin(waiting.pop(0)))
            over = [one for one in running if one[1].is_over()]
            running = [one for one in running if one not in over]
            yield from over
            time.sleep(0.002)

    def _begin(self, case: Case) -> tuple[Case, Attempt]:
        attempt = self._attempt(case.kind, self._timeout)
        attempt.prepare()
        attempt.start(case.options(attempt.path))
        return case, attempt

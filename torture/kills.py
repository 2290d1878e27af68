"""Is a checkpoint that is overwritten while ranks are killed always the old or the new one?

The ranks save version after version over the same path, and at a random moment some or all of them
are killed. Ranks that are left alive notice it and clear up, which must not hurt either. Then the
folder is opened, cleaned up, and saved to again.
"""

from __future__ import annotations

import mmap
import os
import random
import shutil
import struct
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from shardkeep.transfer.council import StoreCouncil
from torture.campaign import Say, Scale, Tally, count_rounds
from torture.processes import MEMORY, connect, fork, kill, logged, reap, serving, warm
from torture.versions import prune_all, save_version, version_of

_ROUNDS = {"short": 40, "long": 1_000}
MAX_RANKS = 4
# What the ranks that were not killed wait for those that were.
_PATIENCE = 0.2
_MAX_SECONDS = 60.0
# Which moment of a save a kill falls into is not in its seed: a round is replayed so often.
_REPEATS = 50


@dataclass(frozen=True)
class Round:
    """How one round goes, drawn by its seed."""

    number: int
    size: int
    is_async: bool
    durable: bool
    victims: tuple[int, ...]
    share: float
    """Of the time that a save takes: from the first that all ranks have begun to the kill."""
    at_commit: bool
    """Wait on, until a manifest is replaced."""

    @classmethod
    def draw(cls, number: int, seed: int) -> Round:
        dice = random.Random(f"{seed}/{number}")
        size = dice.choice((2, 4))
        everyone = range(size)
        victims = dice.choice((everyone, [0], dice.sample(everyone, dice.randint(1, size - 1))))
        return cls(
            number,
            size,
            dice.random() < 0.5,
            dice.random() < 0.25,
            tuple(victims),
            dice.uniform(0, 1.5),
            dice.random() < 0.4,
        )


class Progress:
    """Memory that driver and ranks share: what each has begun and finished."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 2 * 8 * MAX_RANKS)

    def clear(self, version: int) -> None:
        for rank in range(MAX_RANKS):
            self.begin(rank, version)
            self.finish(rank, version)

    def begin(self, rank: int, version: int) -> None:
        struct.pack_into("q", self._memory, 16 * rank, version)

    def finish(self, rank: int, version: int) -> None:
        struct.pack_into("q", self._memory, 16 * rank + 8, version)

    def begun(self, size: int) -> list[int]:
        return [struct.unpack_from("q", self._memory, 16 * rank)[0] for rank in range(size)]

    def finished(self, size: int) -> list[int]:
        return [struct.unpack_from("q", self._memory, 16 * rank + 8)[0] for rank in range(size)]


def be_rank(plan: Round, rank: int, topic: str, port: int, path: Path, progress: Progress) -> None:
    """Save version after version, each over the one before, until somebody dies."""
    store = connect(port)
    version = first = progress.begun(plan.size)[rank]
    while True:
        version += 1
        council = StoreCouncil(
            store,
            range(plan.size),
            rank,
            topic=f"{topic}/{version}",
            # Nobody is killed in the first save of a round: wait for slow starters.
            timeout=_PATIENCE if version > first + 1 else _MAX_SECONDS,
        )
        progress.begin(rank, version)
        save_version(
            version,
            path,
            council,
            size=plan.size,
            durable=plan.durable,
            is_async=plan.is_async,
        )
        progress.finish(rank, version)


class Kills:
    """The campaign."""

    name = "kills"
    promise = "Whoever is killed at whichever moment of an overwrite: old or new, complete."

    def run(self, scale: Scale, seed: int, say: Say, case: str | None = None) -> Tally:
        tally = Tally(self.name, seed)
        numbers = range(_ROUNDS[scale]) if case is None else [int(case)] * _REPEATS
        path = Path(tempfile.mkdtemp(prefix="shardkeep-kills-", dir=MEMORY))
        warm()
        with serving() as port:
            rounds = _Rounds(path, port)
            count_rounds(
                tally,
                numbers,
                lambda number: rounds.run(Round.draw(number, seed)),
                rounds.start_over,
                say,
            )
        shutil.rmtree(path)
        return tally


class _Rounds:
    """Rounds over one folder."""

    def __init__(self, path: Path, port: int) -> None:
        self._path = path
        self._port = port
        self._progress = Progress()
        self._version = 0
        self._count = 0
        # Measured again in every round, so that the kill falls into a save on any machine.
        self._save_seconds = 0.05

    def start_over(self) -> None:
        shutil.rmtree(self._path)
        self._path.mkdir()
        self._version = 0

    def run(self, plan: Round) -> list[str]:
        """What happened, in a few words; AssertionError if it must not."""
        self._progress.clear(self._version)
        self._count += 1
        with logged() as log:
            pids = [self._start(plan, rank, log) for rank in range(plan.size)]
            victims = [pids[rank] for rank in plan.victims]
            try:
                self._wait_for_saves(plan)
                time.sleep(plan.share * self._save_seconds)
                if plan.at_commit:
                    self._wait_for_commit()
            finally:
                kill(victims)
                late = reap([pid for pid in pids if pid not in victims], _MAX_SECONDS)
                reap(victims, _MAX_SECONDS)
            assert not late, f"{len(late)} ranks waited for the dead for ever"
        return self._look(plan)

    def _start(self, plan: Round, rank: int, log: int) -> int:
        topic = str(self._count)
        return fork(lambda: be_rank(plan, rank, topic, self._port, self._path, self._progress), log)

    def _wait_for_saves(self, plan: Round) -> None:
        """Until every rank has committed one save of this round and begun the next."""
        start = time.monotonic()
        first = None
        while min(self._progress.begun(plan.size)) < self._version + 2:
            if first is None and min(self._progress.begun(plan.size)) > self._version:
                first = time.monotonic()
            if time.monotonic() > start + _MAX_SECONDS:
                raise AssertionError("no save went through without a kill")
            time.sleep(0.0005)
        self._save_seconds = 0.5 * self._save_seconds + 0.5 * (time.monotonic() - (first or start))

    def _wait_for_commit(self) -> None:
        """The moment that matters most, and that time alone rarely hits."""
        deadline, before = time.monotonic() + 1.0, self._manifest()
        while self._manifest() == before and time.monotonic() < deadline:
            pass

    def _manifest(self) -> int:
        try:
            return os.stat(self._path / "manifest.json").st_ino
        except FileNotFoundError:
            return 0

    def _look(self, plan: Round) -> list[str]:
        done = max(self._progress.finished(plan.size))
        begun = max(self._progress.begun(plan.size))
        found = version_of(self._path)
        assert found in (done, done + 1), f"version {found} is there, after {done} was finished"
        assert found <= begun, f"version {found} is there, but only {begun} was begun"
        self._version = found
        removed = prune_all(self._path)
        return [
            f"{plan.size} ranks{', async' if plan.is_async else ''}",
            "old" if found == done else "new",
            *(["with leftovers"] if removed else []),
            *(["with survivors"] if len(plan.victims) < plan.size else []),
        ]

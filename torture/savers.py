"""May many jobs save to one path at once, while others read it and clean it up?

Sixteen writers begin at the same moment, round after round. With `overwrite=True` each round must
leave one of those that were told that they stand; without it, exactly one is told so. Readers load
all the time, and what they get is whole and of one writer. `prune` runs all the time.
"""

from __future__ import annotations

import mmap
import os
import random
import shutil
import struct
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from threading import BrokenBarrierError
from typing import Any, Self

import numpy as np
import torch

import shardkeep as sk
from shardkeep.errors import ConflictError, NotFoundError
from shardkeep.manifest import decode_summary
from torture.campaign import Say, Scale, Tally, replay
from torture.processes import MEMORY, fork, kill, read_log, reap, warm

_ROUNDS = {"short": 12, "long": 1_000}
_WRITERS = 16
_READERS = 2
_PRUNERS = 1
# A round is replayed so often: which writer comes first is not in its seed.
_REPEATS = 20
_PAUSE = 0.002
_ITEMS = 4096
_PATIENCE = 120.0


@dataclass(frozen=True)
class Round:
    """How the writers of one round save."""

    number: int
    overwrite: bool
    durable: bool
    is_async: bool

    @classmethod
    def draw(cls, seed: int, number: int) -> Round:
        dice = random.Random(f"{seed}/{number}")
        return cls(number, dice.random() < 0.75, dice.random() < 0.1, dice.random() < 0.3)

    def path(self, base: Path) -> Path:
        """One for all that overwrite, a new one for each round that does not."""
        return base / ("c" if self.overwrite else f"once-{self.number}")

    def version(self, writer: int) -> int:
        return self.number * _WRITERS + writer + 1


def state_of(version: int) -> dict[str, Any]:
    """A state that only one writer has, in one round."""
    return {
        "a": torch.full((_ITEMS,), version, dtype=torch.int64),
        "b": torch.arange(version, version + 100),
    }


def version_of(state: dict[str, Any]) -> int:
    """The version that a state is of; AssertionError if it is a mixture."""
    version = int(state["b"][0])
    for key, wanted in state_of(version).items():
        if not np.array_equal(state[key].numpy(), wanted.numpy()):
            raise AssertionError(f"{key!r} is not of version {version} as the rest is")
    return version


class Board:
    """Memory that all processes share: who was told what, and how much was done beside."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 8 * (_WRITERS + 3))

    def __getitem__(self, at: int) -> int:
        return struct.unpack_from("q", self._memory, 8 * at)[0]

    def __setitem__(self, at: int, value: int) -> None:
        struct.pack_into("q", self._memory, 8 * at, value)


_LOADS, _REMOVED, _OVERTAKEN = _WRITERS, _WRITERS + 1, _WRITERS + 2


def save(plan: Round, writer: int, base: Path, board: Board) -> None:
    """One writer's save; the board says whether it was told that it stands."""
    board[writer] = 0
    act: Callable[..., Any] = sk.save_async if plan.is_async else sk.save
    try:
        done = act(
            state_of(plan.version(writer)),
            plan.path(base),
            overwrite=plan.overwrite,
            durable=plan.durable,
        )
        if plan.is_async:
            done.result()
        board[writer] = 1
    except ConflictError:
        pass


def read_for_ever(base: Path, board: Board) -> None:
    """Load again and again."""
    while True:
        before = _save_id(base / "c")
        try:
            version_of(sk.load(base / "c"))
            board[_LOADS] += 1
        except NotFoundError as error:
            # Replaced faster than it could be read, or not there yet: both can be told.
            if before and _save_id(base / "c") == before:
                raise AssertionError(f"a reader misses a file: {error}") from error
            board[_OVERTAKEN] += 1
        time.sleep(_PAUSE)


def _save_id(path: Path) -> str:
    try:
        return decode_summary((path / "manifest.json").read_bytes(), where=str(path)).save_id
    except FileNotFoundError:
        return ""


def prune_for_ever(base: Path, board: Board) -> None:
    """Clean up again and again."""
    while True:
        for path in base.iterdir():
            try:
                board[_REMOVED] += len(sk.prune(path).names)
            except NotFoundError:
                continue
        time.sleep(_PAUSE)


class Savers:
    """The campaign."""

    name = "savers"
    promise = "Of many that save to one path one stands, readers see it whole, and prune may run."

    def run(self, scale: Scale, seed: int, say: Say, case: str | None = None) -> Tally:
        tally = Tally(self.name, seed)
        numbers = range(_ROUNDS[scale]) if case is None else [int(case)] * _REPEATS
        with _Company([Round.draw(seed, number) for number in numbers]) as company:
            for plan in company.plans:
                wrong = company.run(plan)
                tally.cases += 1
                if wrong:
                    here = replay(self.name, seed, str(plan.number))
                    tally.violations.append(f"{wrong}  {here}")
                if company.is_broken:
                    break
                if tally.cases % 100 == 0:
                    say(f"{tally.cases} rounds, {len(tally.violations)} violations")
        tally.facts |= {
            "saves": tally.cases * _WRITERS,
            "whole loads": company.board[_LOADS],
            "reads overtaken": company.board[_OVERTAKEN],
            "files pruned": company.board[_REMOVED],
        }
        return tally


class _Company:
    """Writers that go from round to round together; readers and pruners who do not wait."""

    def __init__(self, plans: Sequence[Round]) -> None:
        warm()
        self.plans = plans
        self.board = Board()
        self._base = Path(tempfile.mkdtemp(prefix="shardkeep-savers-", dir=MEMORY))
        self._log = os.memfd_create("log")
        # Writers and this process: they meet before and after each round.
        self._meeting = get_context("fork").Barrier(_WRITERS + 1)
        acts = [lambda writer=writer: self._write(writer) for writer in range(_WRITERS)]
        acts += [lambda: read_for_ever(self._base, self.board)] * _READERS
        acts += [lambda: prune_for_ever(self._base, self.board)] * _PRUNERS
        self._pids = [fork(act, self._log) for act in acts]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        kill(self._pids)
        reap(self._pids, _PATIENCE)
        os.close(self._log)
        shutil.rmtree(self._base)

    @property
    def is_broken(self) -> bool:
        """Whether somebody is gone, so that nothing more can be asked."""
        return bool(read_log(self._log)) or self._meeting.broken

    def _write(self, writer: int) -> None:
        for plan in self.plans:
            self._meeting.wait(_PATIENCE)
            try:
                save(plan, writer, self._base, self.board)
            except sk.ShardkeepError as error:
                said = f"writer {writer}: {type(error).__name__}: {error}\n"
                os.write(self._log, said.encode())
            self._meeting.wait(_PATIENCE)

    def run(self, plan: Round) -> str | None:
        """What is wrong after one round; None if nothing is."""
        try:
            self._meeting.wait(_PATIENCE)
            self._meeting.wait(_PATIENCE)
            if said := read_log(self._log):
                return _last_line(said)
            told = [writer for writer in range(_WRITERS) if self.board[writer]]
            return _wrong(plan, self._base, told)
        except BrokenBarrierError:
            return f"a writer did not come to an end; {_last_line(read_log(self._log))}"
        except (sk.ShardkeepError, AssertionError) as error:
            return f"{type(error).__name__}: {_last_line(str(error))}"


def _wrong(plan: Round, base: Path, told: list[int]) -> str | None:
    if not told:
        return "nobody's save stands"
    if not plan.overwrite and len(told) > 1:
        return f"writers {told} were all told that they stand, without overwrite"
    path = plan.path(base)
    version = version_of(sk.load(path))
    if version not in [plan.version(writer) for writer in told]:
        return f"version {version} is there, told were {[plan.version(one) for one in told]}"
    return _leftovers(path, keep=plan.overwrite)


def _leftovers(path: Path, *, keep: bool) -> str | None:
    sk.prune(path)
    deadline = time.monotonic() + 10
    while True:
        left = [name for name in os.listdir(path) if not name.startswith(_save_id(path))]
        if left == ["manifest.json"]:
            break
        if time.monotonic() > deadline:
            return f"prune leaves {sorted(left)[:3]}"
        # Another one that prunes at the same moment tries a lock, and has it for that long.
        sk.prune(path)
    if not keep:
        # The one that prunes may be at the same files.
        shutil.rmtree(path, ignore_errors=True)
    return None


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1]

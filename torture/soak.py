"""Does anything grow while a job saves for as long as it goes?

Four processes save in the background as fast as they can and drop old steps; every now and then
some of them are killed and all are started again, as torchrun does. Of each life, the last third is
compared with the one before: memory, open files, threads, keys in the Store, bytes on disk.
"""

from __future__ import annotations

import mmap
import os
import random
import shutil
import struct
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch

import shardkeep as sk
from torture.campaign import Say, Scale, Tally
from torture.processes import MEMORY, c10d, connect, fork, kill, read_log, reap, serving, warm

RANKS = 4
KEPT = 2
ITEMS = 32 * 1024
_TIMEOUT = 10.0
_START_SECONDS = 60.0
_SAMPLES = 60
"""How often a life is looked at, at least, each time after a further save."""
_LIVES: Mapping[Scale, Sequence[float]] = {"short": (2.0, 3.0), "long": ()}
_LONG_SECONDS, _LAST_LIFE_SECONDS = 1200.0, 360.0

MIB = 2**20
_LIMITS: Mapping[str, tuple[float, float]] = {
    "memory": (6 * MIB, 0.04),
    "open files": (3, 0),
    "threads": (2, 0),
    "keys": (24, 0),
    "disk": (4 * MIB, 0.5),
}
"""How much more the last third may have: so much, or such a share of the one before."""
_MAX_LEFT_KEYS = 120
"""What a save that was cut off may leave in the Store, with gloo's own."""

Leak = Callable[[str, Any, Path], object]
"""For tests: what is done at each save, given a name of its own, the Store and the run's folder."""


@dataclass
class Life:
    """What was seen of one life: by quantity, a row of samples for each process or for all."""

    seconds: float
    rows: dict[str, list[list[float]]] = field(default_factory=dict[str, list[list[float]]])
    saves: int = 0
    left_keys: int = 0
    hung: int = 0
    log: str = ""


class Soak:
    """The campaign. `leak` is for tests."""

    name = "soak"
    promise = "However long a job saves, and however often it dies, nothing it holds grows."

    def __init__(self, leak: Leak | None = None) -> None:
        self._leak = leak

    def run(self, scale: Scale, seed: int, say: Say, case: str | None = None) -> Tally:
        tally = Tally(self.name, seed)
        warm()
        root = Path(tempfile.mkdtemp(prefix="shardkeep-soak-", dir=MEMORY))
        dice, lives = random.Random(seed), list[Life]()
        try:
            with serving() as port:
                for number, seconds in enumerate(_schedule(scale, dice)):
                    life = self._live(number, seconds, root / "run", port, dice)
                    lives.append(life)
                    wrong = judge(life)
                    for line in wrong:
                        self._note(tally, f"life {number} of {seconds:.0f} s: {line}")
                    say(f"life {number}: {life.saves} saves in {seconds:.0f} s, {len(wrong)} wrong")
        finally:
            shutil.rmtree(root, ignore_errors=True)
        tally.cases = sum(life.saves for life in lives)
        for line in judge_all(lives):
            self._note(tally, f"from life to life: {line}")
        tally.facts |= facts_of(lives)
        return tally

    def _note(self, tally: Tally, wrong: str) -> None:
        # Which moment a kill falls into is not in the seed: all of it is run again.
        tally.violations.append(f"{wrong}  python -m torture {self.name} --seed {tally.seed}")

    def _live(
        self, number: int, seconds: float, root: Path, port: int, dice: random.Random
    ) -> Life:
        life, store = Life(seconds), connect(port)
        board = mmap.mmap(-1, 8 * RANKS)
        keys_before = store.num_keys()
        log = os.memfd_create("log")
        pids = [
            fork(lambda r=rank: self._be_rank(r, number, port, root, board), log)
            for rank in range(RANKS)
        ]
        try:
            started = _await_saves(board, log)
            if started:
                _watch(life, pids, store, root, board, seconds)
        finally:
            # Some at once; the others must find out by themselves, and end with an error.
            kill(dice.sample(pids, dice.randint(1, RANKS)))
            life.hung = len(reap(pids, _TIMEOUT + 10.0))
        life.saves = min(_counts(board))
        life.left_keys = store.num_keys() - keys_before
        life.log = read_log(log) if started else f"no save was made. {read_log(log)}"
        os.close(log)
        return life

    def _be_rank(self, rank: int, life: int, port: int, root: Path, board: mmap.mmap) -> None:
        store = c10d.PrefixStore(f"life-{life}", connect(port))
        c10d.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
        run = sk.Checkpointer(root, keep_last=KEPT, durable=False, timeout=_TIMEOUT)
        state = _state(rank, -1)
        step = run.restore(state)
        _require(state, rank, step)
        # What the life before was killed in the middle of.
        run.prune(leftovers=True)
        count = 0
        while True:
            step, count = step + 1, count + 1
            run.save_async(step, _state(rank, step))
            if self._leak is not None:
                self._leak(f"{rank}-{step}", store, root)
            board[8 * rank : 8 * rank + 8] = struct.pack("q", count)


def _state(rank: int, step: int) -> dict[str, Any]:
    return {
        "own": {f"rank{rank}": torch.full((ITEMS,), step + rank)},
        "common": {f"layer{at}": torch.full((256,), step) for at in range(16)},
        "value": sk.per_rank([rank, step]),
        "step": step,
    }


def _require(state: Mapping[str, Any], rank: int, step: int) -> None:
    """AssertionError unless a state that was restored is of this step."""
    if step:
        assert state["step"] == step
        assert bool((state["own"][f"rank{rank}"] == step + rank).all())


def _schedule(scale: Scale, dice: random.Random) -> Sequence[float]:
    """How long each life is; the last of the long run is left alone for longest."""
    lives = list(_LIVES[scale])
    while scale == "long" and sum(lives) < _LONG_SECONDS - _LAST_LIFE_SECONDS:
        lives.append(dice.uniform(10, 90))
    return [*lives, _LAST_LIFE_SECONDS] if scale == "long" else lives


def _counts(board: mmap.mmap) -> tuple[int, ...]:
    return struct.unpack(f"{RANKS}q", board[: 8 * RANKS])


def _await_saves(board: mmap.mmap, log: int) -> bool:
    """Until each rank has saved a few times: what is made once is made then."""
    deadline = time.monotonic() + _START_SECONDS
    while min(_counts(board)) < 2 * KEPT + 4 and time.monotonic() < deadline:
        if read_log(log):
            return False
        time.sleep(0.01)
    return time.monotonic() < deadline


def _watch(
    life: Life, pids: Sequence[int], store: Any, root: Path, board: mmap.mmap, seconds: float
) -> None:
    """Look at the processes for so long, and until they have been seen often enough.

    Only after a further save of all: else a job that stalls for a while is seen not to grow.
    """
    pause = max(0.02, min(1.0, seconds / _SAMPLES / 2))
    for quantity in ("memory", "open files", "threads"):
        life.rows[quantity] = [[] for _ in pids]
    life.rows["keys"], life.rows["disk"] = [[]], [[]]
    start, seen = time.monotonic(), min(_counts(board))
    while (passed := time.monotonic() - start) < seconds + _START_SECONDS:
        if passed > seconds and len(life.rows["disk"][0]) >= _SAMPLES:
            break
        time.sleep(pause)
        if min(_counts(board)) == seen:
            continue
        seen = min(_counts(board))
        for at, pid in enumerate(pids):
            found = _look_at(pid)
            for quantity, value in found.items():
                life.rows[quantity][at].append(value)
        life.rows["keys"][0].append(store.num_keys())
        life.rows["disk"][0].append(_disk_nbytes(root))


def _look_at(pid: int) -> dict[str, float]:
    """What a process holds; nothing if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        files = len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return {}
    fields = dict(line.split(":", 1) for line in lines)
    if "VmRSS" not in fields:
        return {}
    return {
        "memory": int(fields["VmRSS"].split()[0]) * 1024,
        "open files": files,
        "threads": int(fields["Threads"]),
    }


def _disk_nbytes(root: Path) -> int:
    total = 0
    for folder, _, names in os.walk(root):
        for name in names:
            try:
                total += os.stat(os.path.join(folder, name)).st_blocks * 512
            except FileNotFoundError:
                # Removed between the two looks.
                continue
    return total


def judge(life: Life) -> Sequence[str]:
    """What grew within a life, and what else went wrong."""
    wrong = [f"a process raised {life.log[-500:]!r}"] if life.log else []
    if life.hung:
        wrong.append(f"{life.hung} processes did not end after others were killed")
    if life.left_keys > _MAX_LEFT_KEYS:
        wrong.append(f"{life.left_keys} keys were left in the Store")
    for quantity, rows in life.rows.items():
        for row in rows:
            third = len(row) // 3
            if third < _SAMPLES // 6:
                wrong.append(f"{quantity} was seen {len(row)} times only")
                continue
            wrong += _growth(quantity, median(row[third : 2 * third]), median(row[2 * third :]))
    return list(dict.fromkeys(wrong))


def judge_all(lives: Sequence[Life]) -> Sequence[str]:
    """What grew from life to life."""
    sound = [life for life in lives if life.rows.get("disk", [[]])[0]]
    if len(sound) < 2:
        return []
    first, last = sound[0], sound[-1]
    return _growth("disk", median(first.rows["disk"][0]), median(last.rows["disk"][0]))


def _growth(quantity: str, before: float, after: float) -> list[str]:
    least, share = _LIMITS[quantity]
    allowed = max(least, share * before)
    if after - before <= allowed:
        return []
    return [f"{quantity} grew from {before:.0f} to {after:.0f}; {allowed:.0f} more are allowed"]


def facts_of(lives: Sequence[Life]) -> dict[str, object]:
    """What is worth telling."""
    seen = [life for life in lives if life.rows.get("memory", [[]])[0]]
    memory = max((max(max(row) for row in life.rows["memory"]) for life in seen), default=0)
    return {
        "lives": len(lives),
        "saving seconds": round(sum(life.seconds for life in lives)),
        "most MiB of a process": round(memory / MIB),
        "keys left by a kill": max((life.left_keys for life in lives), default=0),
    }

"""Is a checkpoint that is overwritten while ranks are killed always the old or the new one?

A program: it imports torch once and forks the ranks of every round, so that a round takes a
fraction of a second. The ranks save version after version over the same path, and at a random
moment some or all of them are killed. Ranks that are left alive notice it and clear up, which must
not hurt either. Then the folder is opened.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import random
import signal
import struct
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed

import shardkeep as sk
from shardkeep.transfer.council import StoreCouncil

# Much of it is missing in its type information.
c10d: Any = torch.distributed
ITEMS = 32 * 1024
MAX_RANKS = 4
# What the ranks that were not killed wait for those that were.
PATIENCE = 0.2
MAX_SURVIVAL = 30.0


@dataclass(frozen=True)
class Round:
    """How one round goes, drawn by its seed."""

    number: int
    size: int
    is_async: bool
    durable: bool
    victims: tuple[int, ...]
    seconds: float
    """From the first save that all ranks have begun to the kill."""
    at_commit: bool
    """Wait on, until a manifest is replaced."""

    @classmethod
    def draw(cls, number: int, seed: int, save_seconds: float) -> Round:
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
            dice.uniform(0, 1.5 * save_seconds),
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


def state_of(version: int, rank: int) -> dict[str, Any]:
    """What a rank saves: a part of its own, a part that all have, values."""
    return {
        "own": {f"rank{rank}": torch.full((ITEMS,), version, dtype=torch.int64)},
        "common": torch.full((ITEMS,), version, dtype=torch.int64),
        "small": [torch.tensor(version), version],
        "mine": sk.per_rank((version, rank)),
    }


def version_of(path: Path) -> int:
    """The one version that the checkpoint consists of, every byte of it checked."""
    with sk.open(path) as checkpoint:
        report = checkpoint.verify()
        assert report, report.problems
        version, size = checkpoint.metadata["version"], checkpoint.metadata["size"]
        for rank in range(size):
            assert checkpoint.per_rank("mine", rank) == (version, rank)
    state = sk.load(path, keys=["own*", "common", "small*"])
    assert sorted(state["own"]) == [f"rank{rank}" for rank in range(size)]
    for tensor in (*state["own"].values(), state["common"]):
        assert tensor.shape == (ITEMS,)
        assert bool((tensor == version).all()), f"version {version} holds {tensor.unique()}"
    assert state["small"][0].item() == state["small"][1] == version
    return version


def connect(port: int) -> Any:
    """A client of the Store."""
    return c10d.TCPStore("127.0.0.1", port, None, False, timedelta(seconds=60))


def be_rank(plan: Round, rank: int, port: int, path: Path, progress: Progress) -> None:
    """Save version after version, each over the one before, until somebody dies."""
    torch.set_num_threads(1)
    store = connect(port)
    version = first = progress.begun(plan.size)[rank]
    while True:
        version += 1
        council = StoreCouncil(
            store,
            range(plan.size),
            rank,
            topic=f"{plan.number}/{version}",
            # Nobody is killed in the first save of a round: wait for slow starters.
            timeout=PATIENCE if version > first + 1 else MAX_SURVIVAL,
        )
        options: dict[str, Any] = {
            "overwrite": True,
            "durable": plan.durable,
            "metadata": {"version": version, "size": plan.size},
            "group": council,
        }
        state = state_of(version, rank)
        progress.begin(rank, version)
        if plan.is_async:
            handle = sk.save_async(state, path, **options)
            state["common"].fill_(-1)
            handle.result()
        else:
            sk.save(state, path, **options)
        progress.finish(rank, version)


def fork(act: Callable[[], object], log: int) -> int:
    """The process that runs `act` and nothing else."""
    pid = os.fork()
    if pid:
        return pid
    return _finish(act, log)


def _finish(act: Callable[[], object], log: int) -> NoReturn:
    try:
        act()
    except sk.ShardkeepError:
        os._exit(0)
    except BaseException:
        os.write(log, traceback.format_exc().encode())
    os._exit(1)


def keep_store(pipe: int) -> None:
    """The Store's own process, which outlives all ranks."""
    store = c10d.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    os.write(pipe, struct.pack("i", store.port))
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.2)


@dataclass(frozen=True)
class Outcome:
    """What a round found."""

    number: int
    size: int
    is_async: bool
    killed: int
    survived: int
    found: str
    leftovers: int


class Campaign:
    """Rounds over one folder."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        self.seed = seed
        self.progress = Progress()
        self.version = 0
        # Measured again in every round, so that the kill falls into a save on any machine.
        self.save_seconds = 0.05
        self.port = self._start_store()

    def _start_store(self) -> int:
        source, target = os.pipe()
        self.store_pid = fork(lambda: keep_store(target), sys.stderr.fileno())
        return struct.unpack("i", os.read(source, 4))[0]

    def close(self) -> None:
        os.kill(self.store_pid, signal.SIGKILL)
        os.waitpid(self.store_pid, 0)

    def run(self, number: int) -> Outcome:
        plan = Round.draw(number, self.seed, self.save_seconds)
        self.progress.clear(self.version)
        log = os.memfd_create("log")
        pids = [self._start(plan, rank, log) for rank in range(plan.size)]
        self._wait_for_saves(plan)
        time.sleep(plan.seconds)
        if plan.at_commit:
            self._wait_for_commit()
        for rank in plan.victims:
            os.kill(pids[rank], signal.SIGKILL)
        self._reap([pids[rank] for rank in range(plan.size) if rank not in plan.victims])
        for rank in plan.victims:
            os.waitpid(pids[rank], 0)
        self._require_no_trouble(log)
        return self._look(plan)

    def _start(self, plan: Round, rank: int, log: int) -> int:
        act = lambda: be_rank(plan, rank, self.port, self.path, self.progress)  # noqa: E731
        return fork(act, log)

    def _wait_for_saves(self, plan: Round) -> None:
        """Until every rank has committed one save of this round and begun the next."""
        start = time.monotonic()
        first = None
        while min(self.progress.begun(plan.size)) < self.version + 2:
            if first is None and min(self.progress.begun(plan.size)) > self.version:
                first = time.monotonic()
            if time.monotonic() > start + MAX_SURVIVAL:
                raise AssertionError(f"round {plan}: no save went through without a kill")
            time.sleep(0.0005)
        self.save_seconds = 0.5 * self.save_seconds + 0.5 * (time.monotonic() - (first or start))

    def _wait_for_commit(self) -> None:
        """The moment that matters most, and that time alone rarely hits."""
        manifest, deadline = self.path / "manifest.json", time.monotonic() + 1.0
        before = manifest.stat().st_ino
        while manifest.stat().st_ino == before and time.monotonic() < deadline:
            pass

    def _reap(self, survivors: Sequence[int]) -> None:
        """Ranks that were left alive must come to an end by themselves."""
        deadline, left = time.monotonic() + MAX_SURVIVAL, list(survivors)
        while left:
            left = [pid for pid in left if os.waitpid(pid, os.WNOHANG)[0] == 0]
            if left and time.monotonic() > deadline:
                for pid in left:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                raise AssertionError(f"{len(left)} ranks waited for the dead for ever")
            time.sleep(0.002)

    def _require_no_trouble(self, log: int) -> None:
        said = os.pread(log, 1 << 20, 0).decode()
        os.close(log)
        assert not said, f"a rank raised something else than a ShardkeepError:\n{said}"

    def _look(self, plan: Round) -> Outcome:
        done, begun = max(self.progress.finished(plan.size)), max(self.progress.begun(plan.size))
        found = version_of(self.path)
        assert found in (done, done + 1), f"found {found}, after {done} was finished"
        assert found <= begun, f"found {found}, but only {begun} was begun"
        self.version = found
        return Outcome(
            plan.number,
            plan.size,
            plan.is_async,
            len(plan.victims),
            plan.size - len(plan.victims),
            "old" if found == done else "new",
            self._remove_leftovers(),
        )

    def _remove_leftovers(self) -> int:
        """Files that no manifest names, so that a thousand rounds fit on a disk."""
        with sk.open(self.path) as checkpoint:
            manifest = checkpoint.manifest
            listed = {manifest.file_name(index) for index in range(len(manifest.files))}
            listed.add(f"{manifest.save_id}-report.json")
        left = [name for name in os.listdir(self.path) if name not in {*listed, "manifest.json"}]
        for name in left:
            (self.path / name).unlink()
        return len(left)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("path", type=Path)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()
    campaign = Campaign(arguments.path, arguments.seed)
    try:
        for number in range(arguments.rounds):
            try:
                outcome = campaign.run(number)
            except BaseException:
                print(Round.draw(number, arguments.seed, campaign.save_seconds), file=sys.stderr)
                raise
            print(json.dumps(asdict(outcome)), flush=True)
    finally:
        campaign.close()


if __name__ == "__main__":
    main()

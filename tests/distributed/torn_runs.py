"""Does a run whose processes are killed at any moment go on from its newest checkpoint?

A program: it imports torch once and forks the ranks of every round. They restore, then save step
after step and drop old ones, until they are killed in the middle of a save or of a removal. Then
the run is looked at, and the next round goes on with it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import shardkeep as sk
from tests.distributed.torn_overwrite import Progress, c10d, connect, fork, keep_store

ITEMS = 16 * 1024
SIZES = (1, 2)
KEPT = 2
MAX_START = 60.0


@dataclass(frozen=True)
class Round:
    """How one round goes, drawn by its seed."""

    number: int
    size: int
    is_async: bool
    durable: bool
    until: str
    """`time`: kill after `seconds`; `commit`: when a manifest appears; `prune`: a removal."""
    seconds: float
    gap: float
    """Between the death of one rank and of the next."""
    clears: bool
    """Whether leftovers are removed before the run goes on."""

    @classmethod
    def draw(cls, number: int, seed: int, save_seconds: float) -> Round:
        dice = random.Random(f"{seed}/{number}")
        return cls(
            number,
            dice.choice(SIZES),
            dice.random() < 0.5,
            dice.random() < 0.25,
            dice.choice(("time", "commit", "prune")),
            dice.uniform(0, 2 * save_seconds),
            dice.choice((0.0, dice.uniform(0, save_seconds))),
            dice.random() < 0.5,
        )


def state_of(step: int, ranks: range) -> dict[str, Any]:
    """What ranks save together: a part of each one's own, a part that all have, a value."""
    return {
        "own": {f"rank{rank}": torch.full((ITEMS,), step + rank) for rank in ranks},
        "common": torch.full((ITEMS,), step),
        "step": step,
    }


def require_step(state: dict[str, Any], step: int) -> None:
    assert state["step"] == step, f"step {step} says that it is {state['step']}"
    assert bool((state["common"] == step).all()), f"step {step} holds {state['common'].unique()}"
    for name, tensor in state["own"].items():
        assert tensor.shape == (ITEMS,)
        assert bool((tensor == step + int(name[4:])).all()), f"step {step}, {name}"


def be_rank(plan: Round, rank: int, port: int, root: Path, progress: Progress) -> None:
    """Restore what is there, and save step after step until killed: no error is expected."""
    try:
        _be_rank(plan, rank, port, root, progress)
    except sk.ShardkeepError as error:
        raise AssertionError(f"rank {rank} failed before it was killed") from error


def _be_rank(plan: Round, rank: int, port: int, root: Path, progress: Progress) -> None:
    torch.set_num_threads(1)
    if plan.size > 1:
        store = c10d.PrefixStore(f"round-{plan.number}", connect(port))
        c10d.init_process_group("gloo", store=store, rank=rank, world_size=plan.size)
    run = sk.Checkpointer(root, keep_last=KEPT, durable=plan.durable, timeout=MAX_START)
    state = state_of(-1, range(rank, rank + 1))
    # The run before this one may have had another number of ranks.
    step = run.restore(state, strict=False)
    assert step == progress.begun(plan.size)[rank], f"rank {rank} restored {step}"
    handles: list[Any] = []
    while True:
        step += 1
        progress.begin(rank, step)
        state = state_of(step, range(rank, rank + 1))
        if plan.is_async:
            handles.append((step, run.save_async(step, state)))
            state["common"].fill_(-1)
            if len(handles) == 1:
                continue
            done, handle = handles.pop(0)
            handle.result()
            progress.finish(rank, done)
        else:
            run.save(step, state)
            progress.finish(rank, step)


@dataclass(frozen=True)
class Outcome:
    """What a round found."""

    size: int
    is_async: bool
    until: str
    newest: str
    """`done`: the last that a rank knew to be finished; `later`: one after it."""
    steps: int
    half_written: int
    half_removed: int


class Campaign:
    """Rounds over one run."""

    def __init__(self, root: Path, seed: int, port: int) -> None:
        self.root = root
        self.seed = seed
        self.progress = Progress()
        self.step = 0
        self.save_seconds = 0.03
        self.port = port

    def run(self, number: int) -> Outcome:
        plan = Round.draw(number, self.seed, self.save_seconds)
        self.progress.clear(self.step)
        log = os.memfd_create("log")
        pids = [self._start(plan, rank, log) for rank in range(plan.size)]
        try:
            self._wait_for_saves(plan, log)
            self._wait_for_moment(plan)
        finally:
            for pid in random.Random(number).sample(pids, plan.size):
                os.kill(pid, signal.SIGKILL)
                time.sleep(plan.gap)
            for pid in pids:
                os.waitpid(pid, 0)
        self._require_no_trouble(log)
        return self._look(plan)

    def _start(self, plan: Round, rank: int, log: int) -> int:
        return fork(lambda: be_rank(plan, rank, self.port, self.root, self.progress), log)

    def _wait_for_saves(self, plan: Round, log: int) -> None:
        """Until the ranks have dropped a step of this round, so that a removal may come."""
        start, first = time.monotonic(), None
        wanted = self.step + KEPT + 2
        while min(self.progress.begun(plan.size)) < wanted:
            if first is None and min(self.progress.begun(plan.size)) > self.step:
                first = time.monotonic()
            self._require_no_trouble(log)
            if time.monotonic() > start + MAX_START:
                raise AssertionError(f"{plan}: no save went through without a kill")
            time.sleep(0.0005)
        took = (time.monotonic() - (first or start)) / (KEPT + 1)
        self.save_seconds = 0.5 * self.save_seconds + 0.5 * took

    def _wait_for_moment(self, plan: Round) -> None:
        if plan.until == "time":
            time.sleep(plan.seconds)
            return
        deadline, before = time.monotonic() + 1.0, self._committed()
        while time.monotonic() < deadline:
            if plan.until == "prune" and any(self.root.glob(".removed-*")):
                return
            if plan.until == "commit" and self._committed() - before:
                return

    def _committed(self) -> set[str]:
        return {path.parent.name for path in self.root.glob("step-*/manifest.json")}

    def _require_no_trouble(self, log: int) -> None:
        said = os.pread(log, 1 << 20, 0).decode()
        assert not said, said

    def _look(self, plan: Round) -> Outcome:
        done = max(self.progress.finished(plan.size))
        begun = max(self.progress.begun(plan.size))
        run = sk.Checkpointer(self.root, keep_last=KEPT, durable=False)
        removed = len(list(self.root.glob(".removed-*")))
        half_written = run.prune(leftovers=True, dry_run=True).leftovers
        steps = run.steps()
        for step in steps:
            self._require_whole(run, step)
        assert run.latest() == steps[-1]
        assert done <= steps[-1] <= begun, f"found {steps}, finished {done}, begun {begun}"
        # One more may be committed, whose save was killed before the removal of the oldest.
        assert steps == list(range(steps[0], steps[-1] + 1)), f"a hole in {steps}"
        assert KEPT <= len(steps) <= KEPT + 1, f"kept {steps}"
        self._clear(run, steps, plan)
        self.step = steps[-1]
        newest = "done" if self.step == done else "later"
        return Outcome(
            plan.size, plan.is_async, plan.until, newest, len(steps), len(half_written), removed
        )

    def _require_whole(self, run: sk.Checkpointer, step: int) -> None:
        with sk.open(run.path_of(step)) as checkpoint:
            report = checkpoint.verify()
            assert report, report.problems
        require_step(sk.load(run.path_of(step)), step)

    def _clear(self, run: sk.Checkpointer, steps: list[int], plan: Round) -> None:
        if not plan.clears:
            return
        run.prune(leftovers=True)
        kept = steps[-KEPT:]
        assert sorted(os.listdir(self.root)) == [f"step-{step:08d}" for step in kept]
        state = state_of(-1, range(0))
        assert run.restore(state, strict=False) == kept[-1]
        require_step(state, kept[-1])


@contextmanager
def serving() -> Iterator[int]:
    """The port of a Store in a process of its own."""
    source, target = os.pipe()
    pid = fork(lambda: keep_store(target), sys.stderr.fileno())
    try:
        yield struct.unpack("i", os.read(source, 4))[0]
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()
    with serving() as port:
        campaign = Campaign(arguments.root, arguments.seed, port)
        for number in range(arguments.rounds):
            try:
                outcome = campaign.run(number)
            except BaseException:
                print(Round.draw(number, arguments.seed, campaign.save_seconds), file=sys.stderr)
                raise
            print(json.dumps(asdict(outcome)), flush=True)


if __name__ == "__main__":
    main()

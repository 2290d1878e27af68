"""Does a run whose processes are killed at any moment go on from its newest checkpoint?

The ranks of a round restore, then save step after step and drop old ones, until they are killed in
the middle of a save or of a removal. Then the run is looked at, and the next round goes on with it.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import shardkeep as sk
from torture.campaign import Say, Scale, Tally, count_rounds
from torture.kills import Progress
from torture.processes import MEMORY, c10d, connect, fork, read_log, serving, warm

_ROUNDS = {"short": 24, "long": 500}
# Which moment a kill falls into is not in its seed: a round is replayed so often.
_REPEATS = 50
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
    """`time`: kill after `share`; `commit`: when a manifest appears; `prune`: a removal."""
    share: float
    """Of the time that a save takes."""
    gap: float
    """Between the death of one rank and of the next, as such a share."""
    clears: bool
    """Whether leftovers are removed before the run goes on."""
    recycle: bool
    """Whether files of removed steps are written again."""

    @classmethod
    def draw(cls, number: int, seed: int) -> Round:
        dice = random.Random(f"{seed}/{number}")
        return cls(
            number,
            dice.choice(SIZES),
            dice.random() < 0.5,
            dice.random() < 0.25,
            dice.choice(("time", "commit", "prune")),
            dice.uniform(0, 2),
            dice.choice((0.0, dice.random())),
            dice.random() < 0.5,
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
    """AssertionError unless the state is of this step, all of it."""
    assert state["step"] == step, f"step {step} says that it is {state['step']}"
    assert bool((state["common"] == step).all()), f"step {step} holds {state['common'].unique()}"
    for name, tensor in state["own"].items():
        assert tensor.shape == (ITEMS,)
        assert bool((tensor == step + int(name[4:])).all()), f"step {step}, {name}"


def be_rank(plan: Round, rank: int, topic: str, port: int, root: Path, progress: Progress) -> None:
    """Restore what is there, and save step after step until killed: no error is expected."""
    try:
        _be_rank(plan, rank, topic, port, root, progress)
    except sk.ShardkeepError as error:
        raise AssertionError(f"rank {rank} failed before it was killed") from error


def _be_rank(plan: Round, rank: int, topic: str, port: int, root: Path, progress: Progress) -> None:
    if plan.size > 1:
        store = c10d.PrefixStore(topic, connect(port))
        c10d.init_process_group("gloo", store=store, rank=rank, world_size=plan.size)
    run = sk.Checkpointer(
        root, keep_last=KEPT, durable=plan.durable, timeout=MAX_START, recycle=plan.recycle
    )
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


class KilledRuns:
    """The campaign."""

    name = "killed-runs"
    promise = "A run that is killed at any moment goes on from its newest checkpoint."

    def run(self, scale: Scale, seed: int, say: Say, case: str | None = None) -> Tally:
        tally = Tally(self.name, seed)
        numbers = range(_ROUNDS[scale]) if case is None else [int(case)] * _REPEATS
        root = Path(tempfile.mkdtemp(prefix="shardkeep-runs-", dir=MEMORY))
        warm()
        with serving() as port:
            rounds = _Rounds(root / "run", port)
            count_rounds(
                tally,
                numbers,
                lambda number: rounds.run(Round.draw(number, seed)),
                rounds.start_over,
                say,
            )
        shutil.rmtree(root)
        return tally


class _Rounds:
    """Rounds over one run."""

    def __init__(self, root: Path, port: int) -> None:
        self.root = root
        self.progress = Progress()
        self.step = 0
        self.save_seconds = 0.03
        self.port = port
        self._count = 0

    def start_over(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
        self.step = 0

    def run(self, plan: Round) -> list[str]:
        """What happened, in a few words; AssertionError if it must not."""
        self.progress.clear(self.step)
        self._count += 1
        log = os.memfd_create("log")
        pids = [self._start(plan, rank, log) for rank in range(plan.size)]
        try:
            self._wait_for_saves(plan, log)
            self._wait_for_moment(plan)
        finally:
            for pid in random.Random(plan.number).sample(pids, plan.size):
                os.kill(pid, signal.SIGKILL)
                time.sleep(plan.gap * self.save_seconds)
            for pid in pids:
                os.waitpid(pid, 0)
        self._require_no_trouble(log)
        os.close(log)
        return self._look(plan)

    def _start(self, plan: Round, rank: int, log: int) -> int:
        topic = f"round-{self._count}"
        return fork(lambda: be_rank(plan, rank, topic, self.port, self.root, self.progress), log)

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
            time.sleep(plan.share * self.save_seconds)
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
        said = read_log(log)
        assert not said, said

    def _look(self, plan: Round) -> list[str]:
        done = max(self.progress.finished(plan.size))
        begun = max(self.progress.begun(plan.size))
        run = sk.Checkpointer(self.root, keep_last=KEPT, durable=False)
        removed = len(list(self.root.glob(".removed-*")))
        half_written = run.prune(leftovers=True, dry_run=True).leftovers
        steps = run.steps()
        for step in steps:
            self._require_whole(run, step)
        assert run.latest() == steps[-1], f"{run.latest()} is the newest of {steps}"
        assert done <= steps[-1] <= begun, f"found {steps}, finished {done}, begun {begun}"
        # One more may be committed, whose save was killed before the removal of the oldest.
        assert steps == list(range(steps[0], steps[-1] + 1)), f"a hole in {steps}"
        assert KEPT <= len(steps) <= KEPT + 1, f"kept {steps}"
        self._clear(run, steps, plan)
        self.step = steps[-1]
        return [
            f"{plan.size} ranks{', async' if plan.is_async else ''}",
            "newest finished" if self.step == done else "newest one later",
            *(["half-written ones"] if half_written else []),
            *(["half-removed ones"] if removed else []),
        ]

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

"""What do the ranks of a run find, save and drop together? Run on pools; results are JSON."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import shardkeep as sk


def state_of(rank: int, step: int) -> dict[str, Any]:
    return {"own": {f"rank{rank}": torch.arange(100) + 1000 * rank + step}, "step": step}


def outcome(act: Any) -> list[Any]:
    """What an act gave, or the name of its error and what it says."""
    try:
        return ["ok", act()]
    except sk.ShardkeepError as error:
        return [type(error).__name__, str(error)]


def restored(run: sk.Checkpointer, rank: int, *arguments: Any, **options: Any) -> list[Any]:
    state = state_of(rank, -1)

    def act() -> int:
        step = run.restore(state, *arguments, **options)
        wanted = torch.arange(100) + 1000 * rank + (step or -1)
        assert torch.equal(state["own"][f"rank{rank}"], wanted)
        return step

    return outcome(act)


def a_run(rank: int, world: int, *, root: str) -> dict[str, Any]:
    """Save in both ways, drop old ones, and restore, with and without damage."""
    found: dict[str, Any] = {}
    with sk.Checkpointer(root, keep_last=3, keep_best=("loss", "min", 1), timeout=30) as run:
        found["empty"] = restored(run, rank)
        for step in (10, 20, 30, 40, 50):
            save = run.save if step % 20 else run.save_async
            # Only the first rank's metrics count.
            save(step, state_of(rank, step), metrics={"loss": step if rank == 0 else -step})
        run.wait()
        dist.barrier()
        found["steps"] = run.steps()
        found["newest"] = restored(run, rank)
        found["best"] = restored(run, rank, "best")
        found["missing"] = restored(run, rank, 20)
        _damage(rank, world - 1, Path(run.path_of(50)))
        found["damaged"] = restored(run, rank)
        found["fallback"] = restored(run, rank, on_damage="fallback")
        report = run.prune(damaged=True, dry_run=True)
        found["prune"] = [list(report.steps), report.nbytes > 0]
    return found


def _damage(rank: int, victim: int, folder: Path) -> None:
    """A bit of what `victim` alone reads."""
    dist.barrier()
    if rank == 0:
        (path,) = folder.glob(f"*-{victim:05d}-*.safetensors")
        data = bytearray(path.read_bytes())
        data[-3] ^= 1
        path.write_bytes(data)
    dist.barrier()


def a_bad_argument_of_one_rank(rank: int, world: int, *, root: str) -> list[list[Any]]:
    """It fails on all at once, and the saves after it go on."""
    found: list[list[Any]] = []
    with sk.Checkpointer(root, timeout=30) as run:
        for step, save in ((1, run.save), (2, run.save_async)):
            metrics: dict[str, Any] = {"loss": "low" if rank == 2 else 1.0}
            found.append(outcome(lambda: save(step, state_of(rank, step), metrics=metrics)))  # noqa: B023
            if found[-1][0] == "ok":
                # In the background the others hear of it later.
                found[-1] = outcome(run.wait)
        run.save(3, state_of(rank, 3))
        dist.barrier()
        found.append(["ok", run.steps()])
    return found


def a_timer(rank: int, world: int, *, root: str) -> list[int]:
    """The steps at which a rank saved because time was over."""
    saved: list[int] = []
    with sk.Checkpointer(root, every_seconds=0.2, background=False, timeout=30) as run:
        start, is_over, step = time.monotonic(), torch.zeros(1), 0
        while not is_over:
            step += 1
            time.sleep(0.001 * (rank + 1))
            if run.maybe_save(step, state_of(rank, step)) is not None:
                saved.append(step)
            is_over = torch.tensor([len(saved) >= 3 or time.monotonic() > start + 40]).int()
            dist.all_reduce(is_over)
    return saved

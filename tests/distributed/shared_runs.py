"""Do jobs that use one run's folder at the same time spoil each other's checkpoints?

A program: it imports torch once and forks the jobs, each a process of its own.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import shardkeep as sk

ITEMS = 20_000
SAVES = 40


def state_of(step: int) -> dict[str, Any]:
    return {"w": torch.full((ITEMS,), step), "v": torch.arange(ITEMS) + step, "step": step}


def is_whole(state: dict[str, Any], step: int) -> bool:
    wanted = state_of(step)
    return state["step"] == step and all(torch.equal(state[key], wanted[key]) for key in ("w", "v"))


def save_all(root: Path, steps: range, *, in_background: bool, **options: Any) -> None:
    with sk.Checkpointer(root, durable=False, **options) as run:
        for step in steps:
            (run.save_async if in_background else run.save)(step, state_of(step))


def restore_until(root: Path, last: int) -> None:
    """Restore again and again; every time it is a whole checkpoint, and none before the last."""
    found, rounds, deadline = 0, 0, time.monotonic() + 60
    while found < last:
        run, state = sk.Checkpointer(root), state_of(-1)
        step = run.restore(state)
        assert step >= found, f"step {step} after step {found}"
        assert step == 0 or is_whole(state, step), f"step {step} is not whole"
        assert time.monotonic() < deadline, f"step {last} never came, only {found}"
        found, rounds = step, rounds + 1
    assert rounds > 5, f"only {rounds} restores: nothing was tried"


def fork(act: Callable[[], object]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        torch.set_num_threads(1)
        act()
        code = 0
    except BaseException:
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(code)


def all_succeed(*acts: Callable[[], object]) -> bool:
    pids = [fork(act) for act in acts]
    return [os.waitpid(pid, 0)[1] for pid in pids] == [0] * len(pids)


def two_savers(root: Path) -> bool:
    odd, even = range(1, 2 * SAVES, 2), range(2, 2 * SAVES + 1, 2)
    return all_succeed(
        lambda: save_all(root, odd, in_background=False),
        lambda: save_all(root, even, in_background=True),
    )


def two_savers_that_drop(root: Path) -> bool:
    odd, even = range(1, 2 * SAVES, 2), range(2, 2 * SAVES + 1, 2)
    return all_succeed(
        lambda: save_all(root, odd, in_background=True, keep_last=3),
        lambda: save_all(root, even, in_background=False, keep_last=3),
    )


def a_saver_that_drops_and_readers(root: Path) -> bool:
    steps = range(1, 4 * SAVES + 1)
    return all_succeed(
        lambda: save_all(root, steps, in_background=False, keep_last=1),
        lambda: restore_until(root, steps[-1]),
        lambda: restore_until(root, steps[-1]),
    )


def found_in(root: Path) -> dict[str, Any]:
    run = sk.Checkpointer(root)
    steps = run.steps()
    return {
        "steps": steps,
        "whole": [step for step in steps if is_whole(sk.load(run.path_of(step)), step)],
        "others": sorted(set(os.listdir(root)) - {Path(run.path_of(step)).name for step in steps}),
    }


def main() -> None:
    folder = Path(sys.argv[1])
    for jobs in (two_savers, two_savers_that_drop, a_saver_that_drops_and_readers):
        root = folder / jobs.__name__
        fine = jobs(root)
        print(json.dumps({"jobs": jobs.__name__, "fine": fine, **found_in(root)}), flush=True)


if __name__ == "__main__":
    main()

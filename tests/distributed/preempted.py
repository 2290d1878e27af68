"""What does a training job do that is told to save, or to save and stop, in the middle of a step?

A program for torchrun. Each rank says where it is in a file of its own, and at the end what it did.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import shardkeep as sk

MAX_STEPS = 4000


def say(folder: Path, name: str, **facts: object) -> None:
    """All at once: whoever sees the file sees all of it."""
    rank = dist.get_rank()
    (folder / f".{name}-{rank}").write_text(json.dumps(facts))
    (folder / f".{name}-{rank}").rename(folder / f"{name}-{rank}.json")


def train(folder: Path) -> None:
    rank = dist.get_rank()
    own = torch.zeros(1000)
    state = {"own": {f"rank{rank}": own}, "step": 0}
    saved: list[int] = []
    with sk.Checkpointer(folder / "run", on_signal=True, keep_last=2, timeout=60) as run:
        start = state["step"] = run.restore(state, strict=False)
        for step in range(start + 1, MAX_STEPS):
            # Ranks are at different places of a step, and meet in its middle.
            time.sleep(0.002 * rank)
            total = torch.ones(1)
            dist.all_reduce(total)
            own += total
            state["step"] = step
            time.sleep(0.002 * (3 - rank))
            if run.maybe_save(step, state) is not None:
                saved.append(step)
            if step == start + 3:
                say(folder, "ready", pid=os.getpid())
            if run.stopping:
                break
    say(
        folder, "done", start=start, saved=saved, stopping=run.stopping, value=own.unique().tolist()
    )


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(Path(sys.argv[1]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

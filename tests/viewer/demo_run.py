"""A run as training leaves it: a small transformer on four ranks, a later part on two.

Ranks are threads, so that it is there in a second or two. Values drift from step to step, one
tensor has gone bad, one checkpoint is damaged and one was broken off.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from shardkeep.layouts import Layout, Mesh, Replicate, Split
from shardkeep.storage import LocalStorage
from shardkeep.transfer.council import StoreCouncil
from shardkeep.transfer.save import SaveOutcome, run_save
from shardkeep.transfer.timings import Timings
from tests.transfer.worlds import Laid, all_well, kept_by, options, run_ranks

KEEP = {"last": 3, "every": 200, "best": ["loss", "min", 1]}
BAD = "model.layers.1.mlp.up.weight"
SLOW = (600, 2)
"""The step and the rank that took its time."""
_BEGAN = 1_790_000_000.0


def weights(layers: int, width: int) -> dict[str, tuple[int, ...]]:
    """The shapes of a model's parameters."""
    found: dict[str, tuple[int, ...]] = {"model.embed.weight": (8 * width, width)}
    for n in range(layers):
        found |= {
            f"model.layers.{n}.attn.qkv.weight": (3 * width, width),
            f"model.layers.{n}.attn.out.weight": (width, width),
            f"model.layers.{n}.mlp.up.weight": (4 * width, width),
            f"model.layers.{n}.mlp.down.weight": (width, 4 * width),
            f"model.layers.{n}.norm.weight": (width,),
        }
    return {**found, "model.norm.weight": (width,), "model.head.weight": (8 * width, width)}


def _layout(name: str, shape: tuple[int, ...], world: int) -> Layout:
    mesh = Mesh((world // 2, 2), tuple(range(world)))
    if len(shape) == 1:
        return Layout.on_mesh(shape, mesh, (Split(0), Replicate()))
    across = 1 if ".out." in name or ".down." in name else 0
    return Layout.on_mesh(shape, mesh, (Split(0, 2 if across == 0 else 1), Split(across)))


def state_at(step: int, world: int, *, layers: int = 4, width: int = 64) -> dict[str, Laid]:
    """Parameters and their averages, as they stand after so many steps."""
    found: dict[str, Laid] = {}
    for n, (name, shape) in enumerate(weights(layers, width).items()):
        seeded = torch.Generator().manual_seed(n)
        start = torch.randn(shape, generator=seeded) / math.sqrt(shape[-1])
        moved = torch.randn(shape, generator=seeded) / math.sqrt(shape[-1])
        value = start + moved * (1 - math.exp(-step / (150 + 40 * n)))
        if name == BAD and step >= 600:
            value[40:43, 10:20] = math.nan
            value[200, 3] = math.inf
        layout = _layout(name, shape, world)
        found[name] = Laid(value.to(torch.bfloat16), layout)
        for kind in ("exp_avg", "exp_avg_sq"):
            average = moved * 0.01 if kind == "exp_avg" else moved.square() * 1e-4
            found[f"optim.state.{name.removeprefix('model.')}.{kind}"] = Laid(average, layout)
    return found


def save_step(
    run: Path, step: int, tensors: Mapping[str, Laid], world: int, **metrics: float
) -> Path:
    """Save a checkpoint of the run from so many ranks."""
    said: dict[str, Any] = {
        "step": step,
        "saved_at": _BEGAN + 6 * step,
        "metrics": metrics,
        "left_behind": {},
        "keep": KEEP,
    }
    path = run / f"step-{step:08d}"
    metadata = {"run": said, "commit": "4f2a91c", "dataset": "tiny-stories"}
    with LocalStorage(path, create=True, durable=False) as storage:

        def act(rank: int, council: StoreCouncil) -> SaveOutcome:
            timings = Timings()
            with timings.phase("stage"):
                kept = kept_by(rank, tensors)
                time.sleep(0.8 if (step, rank) == SLOW else 0)
            return run_save(lambda: (kept, storage), council, options(metadata=metadata), timings)

        all_well(run_ranks(act, world))
    return path


def make_run(run: Path, *, width: int = 64) -> Path:
    """The run; steps 200 to 700 are whole, 500 is damaged, 800 was broken off."""
    for step in (200, 400, 500, 600, 650, 700):
        world = 4 if step < 650 else 2
        loss, lr = 2.2 * math.exp(-step / 300) + 1.1, 3e-4 * (1 - step / 1000)
        path = save_step(run, step, state_at(step, world, width=width), world, loss=loss, lr=lr)
        if step == 500:
            next(path.glob("*.safetensors")).unlink()
    broken = run / "step-00000800"
    broken.mkdir()
    half = broken / "0123456789abcdef-00000-0.safetensors"
    half.write_bytes(b"half")
    for path in (half, broken):
        os.utime(path, (_BEGAN + 4800, _BEGAN + 4800))
    return run


if __name__ == "__main__":
    import sys

    make_run(Path(sys.argv[1]))

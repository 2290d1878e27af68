"""How does a training loop survive kills, and go on under another parallelism?

    torchrun --standalone --nproc-per-node 4 examples/train_gpt.py runs/a --parallel fsdp

Run it again, and it goes on after the newest checkpoint of the run, to the last bit as if nothing
had happened (`examples/resume_proof.py` shows it). With another `--parallel` or another number of
processes, the losses are those that it would have had, up to rounding, unless there is dropout.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import shardkeep as sk

LETTERS, LENGTH = 64, 48  # of the alphabet, and of each sample
WIDTH, HEADS, BLOCKS = 64, 4, 2
BATCH = 24  # samples of each step on all processes together, however many there are
SAMPLES = 200 * BATCH
PARALLEL = ("fsdp", "hsdp", "ddp", "tp", "fsdp-tp")


def main() -> None:
    args = parse_args()
    dist.init_process_group("gloo")
    is_first = dist.get_rank() == 0

    seed_all(0)  # the same weights on every rank, before they are divided
    model, data = parallelize(GPT(args.dropout), args.parallel)
    seed_all(data.rank)  # ranks of one tensor-parallel group drop the same units
    # Not foreach: tensor parallelism leaves small parameters as they are, beside DTensors.
    optim = torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=False)
    sched = torch.optim.lr_scheduler.LambdaLR(optim, lambda step: warm_cosine(step, args.steps))
    text = markov_text()
    if isinstance(model, DistributedDataParallel):
        settle(model, text[: BATCH // data.world])

    state: dict[str, Any] = {
        "model": model,
        "optim": optim,
        "sched": sched,
        "data": data,
        "rng": sk.rng_state(),
        "step": 0,
    }
    with sk.Checkpointer(
        args.run, keep_last=3, every_steps=args.save_every or None, on_signal=True
    ) as run:
        step = run.restore(state)
        while step < args.steps and not run.stopping:
            begun = time.perf_counter()
            if not data.remaining:
                data.next_epoch()
            loss = loss_of(model, text[data.take(BATCH // data.world)])
            loss.backward()
            optim.step()
            sched.step()
            optim.zero_grad()
            step += 1
            mean_loss = mean_of_ranks(loss)
            time.sleep(args.pause)

            state["step"] = step
            trained = time.perf_counter()
            saved = run.maybe_save(step, state, metrics={"loss": mean_loss})
            blocked = time.perf_counter() - trained if saved is not None else None
            if is_first and args.losses:
                append(
                    args.losses, step=step, loss=mean_loss, seconds=trained - begun, blocked=blocked
                )
    dist.destroy_process_group()


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small GPT; kill it; run it again.")
    # Not `--run`: torchrun would take it for an option of its own.
    parser.add_argument("run", type=Path, help="the folder of the run's checkpoints")
    parser.add_argument("--parallel", choices=PARALLEL, default="fsdp")
    parser.add_argument("--steps", type=int, default=100, help="of the whole run")
    parser.add_argument("--save-every", type=int, default=20, help="steps; 0 for never")
    parser.add_argument("--dropout", type=float, default=0.0, help="the share of units to drop")
    parser.add_argument("--losses", type=Path, help="a file that gets one JSON line for each step")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to sleep in each step")
    return parser.parse_args()


# Parallelism


def parallelize(model: GPT, way: str) -> tuple[nn.Module, sk.DataCursor]:
    """The model, divided among all processes, and the samples of this one."""
    world = dist.get_world_size()
    if way in ("tp", "fsdp-tp"):
        shape = (1, world) if way == "tp" else (world // 2, 2)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("data", "tensor"))
        split_tensors(model, mesh["tensor"])
        if way == "fsdp-tp":
            shard(model, mesh["data"])
        # Ranks of one tensor-parallel group work on the same samples.
        return model, sk.DataCursor(SAMPLES, rank=mesh.get_local_rank("data"), world=shape[0])
    if way == "ddp":
        return DistributedDataParallel(model), sk.DataCursor(SAMPLES)
    if way == "fsdp":
        shard(model, init_device_mesh("cpu", (world,)))
    else:
        names = ("copies", "shards")
        shard(model, init_device_mesh("cpu", (2, world // 2), mesh_dim_names=names))
    return model, sk.DataCursor(SAMPLES)


def shard(model: GPT, mesh: DeviceMesh) -> None:
    """FSDP2; with a mesh of two axes HSDP: copies along the first, shards along the second."""
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def split_tensors(model: GPT, mesh: DeviceMesh) -> None:
    """Whole heads, and columns of the MLP, for each rank."""
    plan = {name: ColwiseParallel() for name in ("query", "key", "value", "up")}
    for block in model.blocks:
        parallelize_module(
            block, mesh, {**plan, "out": RowwiseParallel(), "down": RowwiseParallel()}
        )


def settle(model: DistributedDataParallel, batch: Tensor) -> None:
    """A backward for nothing: DDP adds gradients up in another order in its first than later.

    Without it, the first step of a resumed run would differ by rounding from one left alone.
    """
    with torch.random.fork_rng():
        loss_of(model, batch).backward()
    model.zero_grad()


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


def seed_all(seed: int) -> None:
    """Every generator that `sk.rng_state()` keeps."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def mean_of_ranks(loss: Tensor) -> float:
    total = loss.detach().clone()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


# Model, schedule and text


class Block(nn.Module):
    """Causal attention and an MLP. With tensor parallelism, a rank sees some of the heads."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm1(x)
        heads = [
            project(normed).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        ]
        seen = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.drop(self.out(seen.transpose(1, 2).flatten(2)))
        return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)))))


class GPT(nn.Module):
    """Predicts each letter from those before it."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.letters = nn.Embedding(LETTERS, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, LETTERS, bias=False)

    def forward(self, letters: Tensor) -> Tensor:
        x = self.letters(letters) + self.places(torch.arange(letters.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def warm_cosine(step: int, steps: int) -> float:
    """A tenth of the steps up, the rest down to a tenth of the rate."""
    warm = max(1, steps // 10)
    if step < warm:
        return (step + 1) / warm
    return 0.55 + 0.45 * math.cos(math.pi * min(1.0, (step - warm) / max(1, steps - warm)))


def markov_text() -> Tensor:
    """Samples in which each letter depends on the one before: the same in every process."""
    dice = torch.Generator().manual_seed(1)
    odds = (3 * torch.randn(LETTERS, LETTERS, generator=dice)).softmax(1)
    found = [torch.randint(LETTERS, (SAMPLES,), generator=dice)]
    for _ in range(LENGTH):
        found.append(torch.multinomial(odds[found[-1]], 1, generator=dice)[:, 0])
    return torch.stack(found, 1)


def append(path: Path, **values: Any) -> None:
    with path.open("a") as file:
        file.write(json.dumps(values) + "\n")


if __name__ == "__main__":
    main()

"""Training that is broken off and goes on: the same numbers, or the same run on other ranks."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import shardkeep as sk
from tests.distributed.parallelisms import group_of, meet
from tests.distributed.tensors import assert_group_works
from tests.distributed.training import Run, assert_same_snapshot

SECONDS = 60.0


def a_run_goes_on_bit_for_bit(
    rank: int, world: int, *, folder: str, way: str, in_background: bool
) -> None:
    """Broken off after 4 of 14 steps, in the second of which an epoch ends."""
    ranks = tuple(range(world))
    meet(ranks)
    run, path = Run(way, ranks, seed=1), f"{folder}/{way}"
    run.train(4)
    at_save = run.local()
    handle = None
    if in_background:
        handle = sk.save_async(run.state, path, timeout=SECONDS)
    else:
        sk.save(run.state, path, timeout=SECONDS)
    losses = run.train(10)
    at_end = run.local()
    if handle is not None:
        handle.result(SECONDS)

    fresh = Run(way, ranks, seed=2)
    if way == "ddp":
        # It adds gradients in another order before its first step than after.
        fresh.train(1)
    name = "blocks.0.up.weight"
    assert not torch.equal(fresh.local()[name], at_save[name])
    sk.load(path, fresh.state, timeout=SECONDS)

    assert_same_snapshot(fresh.local(), at_save)
    assert fresh.train(10) == losses
    assert_same_snapshot(fresh.local(), at_end)
    assert at_end["epoch"] == 1
    assert_group_works()


def dropout_matters(rank: int, world: int) -> bool:
    """Whether another random state gives another loss: else no test sees that it is kept."""
    ranks = tuple(range(world))
    meet(ranks)
    one, other = Run("fsdp", ranks, seed=1), Run("fsdp", ranks, seed=1)
    first = one.train(1)
    torch.manual_seed(77)
    return first != other.train(1)


def train_and_save(rank: int, world: int, *, folder: str, way: str) -> list[float]:
    """Save after 4 steps, and leave the gathered state beside it; the losses of 6 more."""
    ranks = tuple(range(world))
    meet(ranks)
    run = Run(way, ranks, seed=1, dropout=0.0)
    run.train(4)
    sk.save(run.state, f"{folder}/{way}", timeout=SECONDS)
    full = run.full()
    if rank == 0:
        torch.save(full, f"{folder}/{way}.pt")
    return run.train(6)


def load_and_train(
    rank: int, world: int, *, path: str, way: str, members: list[int]
) -> list[float] | None:
    """The losses of 6 steps on the ranks that take part."""
    ranks = tuple(members)
    meet(ranks)
    if rank not in ranks:
        return None
    run = Run(way, ranks, seed=2, dropout=0.0)
    sk.load(path, run.state, group=group_of(ranks), timeout=SECONDS)
    truth: dict[str, Any] = torch.load(f"{path}.pt", weights_only=True)
    assert_same_snapshot(run.full(), truth)
    return run.train(6)


def a_sharded_meta_model_gets_its_shards_alone(
    rank: int, world: int, *, path: str, way: str
) -> list[float]:
    """The losses of 6 steps that follow."""
    ranks = tuple(range(world))
    meet(ranks)
    run = Run(way, ranks, seed=2, dropout=0.0, device="meta")
    held = list(run.model.parameters())
    assert all(parameter.is_meta for parameter in held)

    sk.load(path, run.state, timeout=SECONDS)

    assert all(a is b for a, b in zip(held, run.model.parameters(), strict=True))
    assert_same_snapshot(run.full(), torch.load(f"{path}.pt", weights_only=True))
    for parameter in held:
        _assert_only_its_shard(parameter)
        for key, value in run.optimizer.state[parameter].items():
            if key != "step":
                _assert_only_its_shard(value)
    return run.train(6)


def _assert_only_its_shard(value: Any) -> None:
    """FSDP2 pads a shard to the largest one; nothing beyond that may be held in memory."""
    nbytes, mesh = value.element_size(), value.device_mesh
    for dim, side in enumerate(value.shape):
        dividing = [n for n, p in enumerate(value.placements) if getattr(p, "dim", None) == dim]
        nbytes *= -(-side // math.prod(mesh.size(n) for n in dividing))
    assert nbytes < value.numel() * value.element_size()
    assert value.to_local().untyped_storage().nbytes() <= nbytes


# The data


def take_some(
    rank: int, world: int, *, paths: list[str | None], members: list[int], counts: list[int]
) -> list[int]:
    """Load the first path, take as many samples as `counts` says, save as the second path."""
    before, after = paths
    group = group_of(tuple(members))
    if rank not in members:
        return []
    cursor = sk.DataCursor(100, rank=members.index(rank), world=len(members))
    if before is not None:
        sk.load(before, {"data": cursor}, group=group, timeout=SECONDS)
    taken = cursor.take(counts[members.index(rank)])
    if after is not None:
        sk.save({"data": cursor}, after, group=group, timeout=SECONDS)
    return taken


def a_rank_is_an_epoch_ahead(rank: int, world: int, *, path: str) -> str:
    cursor = sk.DataCursor(100)
    if rank == 2:
        cursor.next_epoch()
    try:
        sk.save({"data": cursor}, path, timeout=SECONDS)
    except sk.ShardkeepError as error:
        assert not Path(path, "manifest.json").exists()
        return f"{type(error).__name__}: {error}"
    finally:
        dist.barrier()
    return ""


def twins_have_taken_different_numbers(rank: int, world: int, *, path: str) -> str:
    """Ranks 0 and 1, 2 and 3 are tensor-parallel twins; the load is refused on all of them."""
    cursor = sk.DataCursor(100, rank=rank // 2, world=2)
    cursor.take(5 if rank == 3 else 4)
    sk.save({"data": cursor}, path, timeout=SECONDS)
    try:
        sk.load(path, {"data": cursor}, timeout=SECONDS)
    except sk.ConflictError as error:
        return str(error)
    return ""


# Random states


def save_random_state(rank: int, world: int, *, path: str) -> list[float]:
    torch.manual_seed(50 + rank)
    sk.save({"rng": sk.rng_state()}, path, timeout=SECONDS)
    return torch.rand(3).tolist()


def load_random_state(rank: int, world: int, *, path: str) -> list[float]:
    torch.manual_seed(0)
    sk.load(path, {"rng": sk.rng_state()}, timeout=SECONDS)
    return torch.rand(3).tolist()

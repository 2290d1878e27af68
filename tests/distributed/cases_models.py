"""Models as they are trained: FSDP2, HSDP, TP and both at once, with their state dicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from shardkeep import broadcast_state_dict, distribute_state_dict, gather_state_dict
from tests.distributed.tensors import assert_same

State = dict[str, Any]


class Block(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width, bias=False)


class Model(nn.Module):
    """An embedding, blocks, and a head that is tied to the embedding."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, width)
        self.blocks = nn.ModuleList(Block(width, hidden) for _ in range(2))
        self.head = nn.Linear(width, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.precise = nn.Parameter(torch.rand(3, 1, 2, dtype=torch.float64))
        self.register_buffer("steps", torch.tensor(2**25 + 1))
        self.register_buffer("mask", torch.rand(width) > 0.5)


def fsdp(model: Model, world: int) -> None:
    mesh = init_device_mesh("cpu", (world,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def hsdp(model: Model, world: int) -> None:
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def tp(model: Model, world: int) -> None:
    _parallelize(model, init_device_mesh("cpu", (world,), mesh_dim_names=("tp",)))


def _parallelize(model: Model, mesh: Any) -> None:
    for block in model.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    parallelize_module(model, mesh, {"embedding": RowwiseParallel(), "head": ColwiseParallel()})
    model.head.weight = model.embedding.weight


def fsdp_tp(model: Model, world: int) -> None:
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp", "tp"))
    _parallelize(model, mesh["tp"])
    for block in model.blocks:
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])


WAYS: dict[str, Callable[[Model, int], None]] = {
    "fsdp": fsdp,
    "hsdp": hsdp,
    "tp": tp,
    "fsdp_tp": fsdp_tp,
}


def whole_state(width: int, hidden: int, seed: int = 0) -> State:
    """The state of the model before it is sharded, the same on every rank."""
    torch.manual_seed(seed)
    return {key: value.clone() for key, value in Model(width, hidden).state_dict().items()}


def sharded_state(
    way: str, world: int, width: int, hidden: int, *, seed: int = 0, device: str = "cpu"
) -> State:
    torch.manual_seed(seed)
    with torch.device(device):
        model = Model(width, hidden)
    WAYS[way](model, world)
    return model.state_dict()


def kinds_of_placements(rank: int, world: int, *, way: str, width: int, hidden: int) -> list[str]:
    """What the model's state is made of."""
    state = sharded_state(way, world, width, hidden)
    kinds: set[str] = set()
    for leaf in state.values():
        if isinstance(leaf, DTensor):
            kinds |= {type(placement).__name__ for placement in leaf.placements}
        else:
            kinds.add("plain")
    return sorted(kinds)


def gather_gives_the_model_before_it_was_sharded(
    rank: int, world: int, *, way: str, width: int, hidden: int
) -> None:
    expected = whole_state(width, hidden)
    state = sharded_state(way, world, width, hidden)

    whole = gather_state_dict(state)
    some = gather_state_dict(state, ranks_only=(1,))

    assert list(whole) == list(expected)
    for key, value in expected.items():
        assert_same(whole[key], value)
        if isinstance(state[key], DTensor):
            assert_same(whole[key], state[key].full_tensor())
    assert list(some) == (list(expected) if rank == 1 else [])
    for key in some:
        assert_same(some[key], expected[key])


def _assert_filled(local: State, expected: State, model: State) -> None:
    """Every leaf is as in the sharded model: the local bits, and by DTensor's own gather."""
    assert list(local) == list(expected)
    for key, value in expected.items():
        leaf = local[key]
        if not isinstance(model[key], DTensor):
            assert_same(leaf, value)
            continue
        assert isinstance(leaf, DTensor)
        assert leaf.placements == model[key].placements
        assert leaf.device_mesh == model[key].device_mesh
        assert_same(leaf.to_local(), model[key].to_local())
        assert_same(leaf.full_tensor(), value)


def broadcast_gives_the_sharded_model(
    rank: int, world: int, *, way: str, width: int, hidden: int
) -> None:
    expected = whole_state(width, hidden)
    model = sharded_state(way, world, width, hidden)
    for src, device in ((0, "cpu"), (2, "cpu"), (0, "meta"), (2, "meta")):
        target = sharded_state(way, world, width, hidden, seed=100 + rank, device=device)
        before = dict(target)
        # What the other ranks pass as the full state does not count.
        full = expected if rank == src else whole_state(3, 4, seed=rank)
        broadcast_state_dict(full, target, src=src)
        _assert_filled(target, expected, model)
        if device == "cpu":
            assert all(target[key] is leaf for key, leaf in before.items())


def distribute_gives_the_sharded_model(
    rank: int, world: int, *, way: str, width: int, hidden: int
) -> None:
    expected = whole_state(width, hidden)
    model = sharded_state(way, world, width, hidden)
    local = sharded_state(way, world, width, hidden, seed=100 + rank)
    unsharded = sharded_state(way, world, width, hidden, device="meta")

    for target in (local, unsharded):
        distribute_state_dict(expected, target)
        _assert_filled(target, expected, model)


def a_meta_model_takes_the_broadcast_state(
    rank: int, world: int, *, way: str, width: int, hidden: int
) -> None:
    """The way a large model starts: no rank but one ever holds it whole."""
    expected = whole_state(width, hidden)
    with torch.device("meta"):
        model = Model(width, hidden)
    WAYS[way](model, world)
    state = model.state_dict()

    broadcast_state_dict(expected if rank == 0 else {}, state)
    model.load_state_dict(state, assign=True)

    assert not any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
    for key, leaf in model.state_dict().items():
        whole = leaf.full_tensor() if isinstance(leaf, DTensor) else leaf
        assert_same(whole.detach(), expected[key])


def optimizer_state_comes_and_goes(
    rank: int, world: int, *, way: str, width: int, hidden: int
) -> None:
    """Adam's own state dict: int keys, lists, tuples of floats, 0-dim steps, sharded moments."""
    state = _adam_state(way, world, width, hidden, steps=2)

    whole = gather_state_dict(state, ranks_only=(1,))
    assert bool(whole) == (rank == 1)
    fresh = _adam_state(way, world, width, hidden, steps=1)
    broadcast_state_dict(whole, fresh, src=1)

    assert fresh["param_groups"] == state["param_groups"]
    assert isinstance(fresh["param_groups"][0]["betas"], tuple)
    moments = 0
    for number, entry in state["state"].items():
        for name, leaf in entry.items():
            found = fresh["state"][number][name]
            if isinstance(leaf, DTensor):
                moments += 1
                assert_same(found.to_local(), leaf.to_local())
            else:
                assert_same(found, leaf)
            if rank == 1:
                full = leaf.full_tensor() if isinstance(leaf, DTensor) else leaf
                assert_same(whole["state"][number][name], full)
            elif isinstance(leaf, DTensor):
                leaf.full_tensor()
    assert moments > 10


def _adam_state(way: str, world: int, width: int, hidden: int, *, steps: int) -> State:
    torch.manual_seed(0)
    model = Model(width, hidden)
    WAYS[way](model, world)
    optimizer = torch.optim.Adam(
        model.parameters(), lr=0.1 * steps, betas=(0.5, 0.9), foreach=False
    )
    for _ in range(steps):
        for parameter in model.parameters():
            parameter.grad = parameter.detach() * 0.5
        optimizer.step()
    return optimizer.state_dict()

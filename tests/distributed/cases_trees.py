"""State dicts on real ranks: any container, kind of leaf and set of receivers."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard

from shardkeep import (
    Box,
    Shard as LocalShard,
    ShardedTensor,
    ShardedTensorMetadata,
    ShardMetadata,
    Stager,
    TensorProperties,
    broadcast_state_dict,
    distribute_state_dict,
    flatten_sharded_tensors,
    gather_state_dict,
)
from tests.distributed.dtensors import blank, placed
from tests.distributed.tensors import (
    assert_holds,
    assert_same,
    boxes,
    chunks,
    distinct,
    on_ranks,
    sharded,
)


def the_order_of_keys_may_differ_between_ranks(rank: int, world: int) -> None:
    mesh = init_device_mesh("cpu", (world,))
    fulls = {name: distinct((5, 2), torch.int64) + shift for shift, name in enumerate("abcd")}
    fulls["long"] = distinct((9, 4), torch.int64)
    names = list(fulls)
    turned = names[rank:] + names[:rank]

    state = {name: placed(fulls[name], mesh, Shard(0)) for name in turned}
    whole = gather_state_dict(state)
    assert list(whole) == turned
    for name, full in fulls.items():
        assert_same(whole[name], full)

    local: dict[str, Any] = {name: blank(state[name]) for name in turned} | {
        "plain": torch.zeros(3)
    }
    broadcast_state_dict(fulls | {"plain": torch.arange(3.0)}, local, src=1)
    for name in names:
        assert_same(local[name].to_local(), state[name].to_local())
    assert_same(local["plain"], torch.arange(3.0))


def broadcast_fills_what_is_there(rank: int, world: int) -> None:
    """Same objects, own dtype, any container."""
    mesh = init_device_mesh("cpu", (world,))
    values = torch.arange(10.0).reshape(5, 2)
    full: dict[Any, Any] = {
        "model": OrderedDict(w=values, b=values * 2),
        "list": [values * 3, 7, "x"],
        "pair": (values * 4, values * 5),
        "betas": (0.5, 0.25),
        1: {"int key": torch.tensor(8.5)},
    }
    local: dict[Any, Any] = {
        "model": OrderedDict(
            w=placed(torch.zeros(5, 2, dtype=torch.bfloat16), mesh, Shard(0)),
            b=sharded(torch.zeros(5, 2), chunks(0, [2, 3, 1])),
        ),
        "list": [torch.zeros(5, 2, dtype=torch.float64), 0, None],
        "pair": (torch.zeros(5, 2), placed(torch.zeros(5, 2), mesh, Shard(1))),
        "betas": (0.0, 0.0),
        1: {"int key": torch.tensor(0.0)},
    }
    before = [local["model"]["w"], local["model"]["b"], local["list"][0], *local["pair"]]

    broadcast_state_dict(full if rank == 3 else {}, local, src=3)

    after = [local["model"]["w"], local["model"]["b"], local["list"][0], *local["pair"]]
    assert all(a is b for a, b in zip(after, before, strict=True))
    assert_same(local["model"]["w"].full_tensor(), values.bfloat16())
    assert_holds(local["model"]["b"], values * 2)
    assert_same(local["list"][0], (values * 3).double())
    assert local["list"][1:] == [7, "x"]
    assert local["betas"] == (0.5, 0.25)
    assert_same(local["pair"][0], values * 4)
    assert_same(local["pair"][1].full_tensor(), values * 5)
    assert_same(local[1]["int key"], torch.tensor(8.5))


def distribute_fills_what_is_there(rank: int, world: int) -> None:
    mesh = init_device_mesh("cpu", (world,))
    values = torch.arange(10.0).reshape(5, 2)
    full: dict[str, Any] = {
        "pair": (values * 4, values * 5),
        "betas": (0.5, 0.25),
        "step": 3,
        "unknown": 4,
        "scalar": torch.tensor(1.5),
    }
    local: dict[str, Any] = {
        "pair": (torch.zeros(5, 2), placed(torch.zeros(5, 2), mesh, Shard(1))),
        "betas": (0.0, 0.0),
        "step": 0,
        "scalar": torch.tensor(0.0),
        "mine": 1,
    }
    before = local["pair"]

    distribute_state_dict(full, local)

    assert all(a is b for a, b in zip(local["pair"], before, strict=True))
    assert_same(local["pair"][0], values * 4)
    assert_same(local["pair"][1].full_tensor(), values * 5)
    assert_same(local["scalar"], torch.tensor(1.5))
    assert (local["step"], local["mine"], local["betas"]) == (3, 1, (0.5, 0.25))
    assert "unknown" not in local


def meshes_of_each_ranks_own(rank: int, world: int) -> None:
    """A norm under TP: each rank's DTensor names its own dp group only."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    full = distinct((5, 2))
    state = {
        "norm": placed(full, mesh["dp"], Shard(0)),
        "w": placed(full * 2, mesh, Shard(0), Shard(1)),
    }
    whole = gather_state_dict(state)
    assert_same(whole["norm"], full)
    assert_same(whole["w"], full * 2)

    local = {"norm": blank(state["norm"]), "w": blank(state["w"])}
    broadcast_state_dict({"norm": full, "w": full * 2} if rank == 3 else {}, local, src=3)
    assert_same(local["norm"].to_local(), state["norm"].to_local())
    assert_same(local["w"].to_local(), state["w"].to_local())


def gather_to_some_ranks(rank: int, world: int) -> None:
    full = distinct((7, 3), torch.int64)
    note = {"step": 3}
    state = {"w": sharded(full, chunks(1, [3, 0, 1])), "plain": full * 2, "note": note}
    for receivers in ((), (1,), (3, 0)):
        whole = gather_state_dict(state, ranks_only=receivers)
        if receivers and rank not in receivers:
            assert whole == {}
            continue
        assert_same(whole["w"], full)
        assert whole["plain"] is state["plain"]
        assert whole["note"] == note
    assert_holds(state["w"], full)


def pytorchs_own_sharded_tensors(rank: int, world: int) -> None:
    """Rows and columns of torch's class, with chunks that start past the end."""
    from torch.distributed._shard import sharded_tensor as torch_sharded
    from torch.distributed._shard.sharding_spec import ChunkShardingSpec as TorchChunks

    full = distinct((5, 6), torch.int64)
    state: dict[str, Any] = {}
    for dim, order in ((0, [0, 1, 2, 3]), (1, [3, 1, 0, 2])):
        placements: list[Any] = on_ranks(order)
        made = torch_sharded.zeros(TorchChunks(dim, placements), 5, 6, dtype=torch.int64)
        state[f"dim {dim}"] = made
    for tensor in state.values():
        for shard in tensor.local_shards():
            box = Box.sized(shard.metadata.shard_offsets, shard.metadata.shard_sizes)
            shard.tensor.copy_(full[box.slices()])

    for whole in (gather_state_dict(state), gather_state_dict(state, ranks_only=(2,))):
        for key in whole:
            assert_same(whole[key], full)

    news = dict.fromkeys(state, full * 7)
    broadcast_state_dict(news if rank == 1 else {}, state, src=1)
    for whole in gather_state_dict(state).values():
        assert_same(whole, full * 7)
    distribute_state_dict(dict.fromkeys(state, full * 3), state)
    for whole in gather_state_dict(state).values():
        assert_same(whole, full * 3)


def nested_tensors_become_flat(rank: int, world: int) -> None:
    """Rows over pairs of ranks, columns within each pair."""
    full = distinct((7, 3), torch.int64)
    halves = [Box((0, 0), (4, 3)), Box((4, 0), (7, 3))]
    number, (first, second) = rank // 2, ([0, 1], [2, 3])[rank // 2]
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    rows = halves[number].shape[0]
    columns = boxes((first, Box((0, 0), (rows, 2))), (second, Box((0, 2), (rows, 3))))
    inner = sharded(full[halves[number].slices()], columns, groups[number])
    state = {
        "nested": _outer(inner, rank, halves),
        "flat": sharded(full, chunks(0, [2])),
        "plain": full,
    }

    flat = flatten_sharded_tensors(state)

    assert list(flat) == ["nested", "flat", "plain"]
    owners = {record.rank: record.box for record in flat["nested"].metadata().shards_metadata}
    assert owners == {
        0: Box((0, 0), (4, 2)),
        1: Box((0, 2), (4, 3)),
        2: Box((4, 0), (7, 2)),
        3: Box((4, 2), (7, 3)),
    }
    assert_holds(flat["nested"], full)
    assert_same(flat["nested"].full_tensor(), full)
    assert flat["flat"] is state["flat"]
    assert flat["plain"] is full
    (shard,) = flat["nested"].local_shards()
    assert shard.tensor.data_ptr() == inner.local_shards()[0].tensor.data_ptr()


def _outer(inner: ShardedTensor, rank: int, halves: list[Box]) -> ShardedTensor:
    """What FSDP1 over TP has: this rank's outer shard, and that of its peer in the other pair."""
    peer = (rank + 2) % 4
    owners = [rank, peer] if rank < 2 else [peer, rank]
    records = [
        ShardMetadata.of_box(box, f"rank:{owner}/cpu")
        for box, owner in zip(halves, owners, strict=True)
    ]
    metadata = ShardedTensorMetadata(records, torch.Size([7, 3]), TensorProperties(inner.dtype))
    mine = LocalShard(inner, records[rank // 2])
    return ShardedTensor.from_local_shards_and_global_metadata([mine], metadata)


def released_memory_is_used_again(rank: int, world: int) -> None:
    """pytorch#188434: buffers that are freed on another thread were never given back."""
    stager = Stager()
    state = {"w": sharded(distinct((64, 3)), chunks(0, range(world))), "plain": distinct((64, 3))}
    seen: set[tuple[int, int]] = set()
    for _ in range(20):
        snapshot = stager.stage(state)
        local = snapshot.tree["w"].local_shards()[0].tensor
        seen.add((local.data_ptr(), snapshot.tree["plain"].data_ptr()))
        release = threading.Thread(target=snapshot.release)
        release.start()
        release.join()
    assert len(seen) == 1

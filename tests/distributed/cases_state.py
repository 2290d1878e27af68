"""State dicts on real ranks, above all where PyTorch's tools lose data, crash or alias."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

from shardkeep import (
    Box,
    RankFailedError,
    RankInputError,
    RanksDisagreeError,
    Shard as LocalShard,
    ShardedTensor,
    ShardedTensorMetadata,
    ShardMetadata,
    Stager,
    TensorProperties,
    broadcast_state_dict,
    check_state_dict_similarity,
    copy_state_dict,
    create_cpu_state_dict,
    diff_state_dict,
    distribute_state_dict,
    flatten_sharded_tensors,
    gather_state_dict,
    offload_state_dict_to_cpu,
)
from tests.distributed.tensors import (
    assert_group_works,
    assert_holds,
    assert_same,
    boxes,
    chunks,
    distinct,
    on_ranks,
    sharded,
    subgroup,
)


def placed(full: torch.Tensor, mesh: DeviceMesh, *placements: Any) -> DTensor:
    """`full`, which every rank has, as a DTensor."""
    return distribute_tensor(full, mesh, placements, src_data_rank=None)


def blank(tensor: DTensor) -> DTensor:
    """The same layout without the values; works on ranks outside the mesh, too."""
    return DTensor.from_local(
        torch.full_like(tensor.to_local(), 99),
        tensor.device_mesh,
        tensor.placements,
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )


def b01_gather_keeps_every_dtype(rank: int, world: int) -> None:
    fulls = {
        "beyond float32": torch.arange(2**25 + 1, 2**25 + 15).reshape(7, 2),
        "float64": distinct((7, 2), torch.float64),
        "bfloat16": distinct((7, 2), torch.bfloat16),
        "bool": distinct((7, 2), torch.bool),
        "complex": distinct((7, 2), torch.complex64),
        "float8": distinct((7, 2), torch.float8_e4m3fn),
    }
    whole = gather_state_dict(
        {key: sharded(full, chunks(0, range(world))) for key, full in fulls.items()}
    )
    for key, full in fulls.items():
        assert_same(whole[key], full)


def b02_gather_places_by_box(rank: int, world: int) -> None:
    full = distinct((8, 6), torch.int64)
    specs = {
        "columns": chunks(1, range(world)),
        "permuted": chunks(0, [2, 0, 3, 1]),
        "several": chunks(0, [0, 1, 2, 3, 3, 2, 1, 0]),
        "boxes": boxes(
            (3, Box((0, 0), (8, 1))), (1, Box((0, 1), (5, 6))), (3, Box((5, 1), (8, 6)))
        ),
    }
    state = {key: sharded(full, spec) for key, spec in specs.items()}
    for whole in (gather_state_dict(state), gather_state_dict(state, cpu_offload=True)):
        assert list(whole) == list(specs)
        for key in specs:
            assert_same(whole[key], full)


def b03_partial_targets_are_refused(rank: int, world: int) -> None:
    mesh = init_device_mesh("cpu", (world,))
    full = {"w": torch.ones(4)}
    local = DTensor.from_local(torch.full((4,), 7.0), mesh, [Partial()], run_check=False)

    with pytest.raises(RankInputError, match=r"(?s)ranks 0-3.*'w'.*partial.*redistribute"):
        broadcast_state_dict(full, {"w": local})
    with pytest.raises(ValueError, match=r"'w'.*partial.*redistribute"):
        distribute_state_dict(full, {"w": local})

    assert_same(local.to_local(), torch.full((4,), 7.0))
    assert_group_works()


def b03_partial_sources_are_reduced(rank: int, world: int) -> None:
    mesh = init_device_mesh("cpu", (world,))
    local = DTensor.from_local(torch.full((4,), 2.0**rank), mesh, [Partial()], run_check=False)

    whole = gather_state_dict({"w": local})

    assert_same(whole["w"], torch.full((4,), 15.0))


def b04_strided_shards_get_their_own_indices(rank: int, world: int) -> None:
    mesh = init_device_mesh("cpu", (2, 2))
    full = {"w": torch.arange(4), "uneven": distinct((7, 3), torch.int64)}
    placements = (Shard(0), _StridedShard(0, split_factor=2))
    expected = {key: placed(whole, mesh, *placements) for key, whole in full.items()}
    swapped = {
        key: placed(whole, mesh, _StridedShard(0, split_factor=2), Shard(0))
        for key, whole in full.items()
    }
    for goal in (expected, swapped):
        sent = {key: blank(tensor) for key, tensor in goal.items()}
        broadcast_state_dict(full if rank == 0 else {}, sent)
        cut = {key: blank(tensor) for key, tensor in goal.items()}
        distribute_state_dict(full, cut)
        for key, tensor in goal.items():
            assert_same(sent[key].to_local(), tensor.to_local())
            assert_same(cut[key].to_local(), tensor.to_local())
        whole = gather_state_dict(goal)
        for key in full:
            assert_same(whole[key], full[key])


def b05_looking_for_differences_changes_nothing(rank: int, world: int) -> None:
    mesh = init_device_mesh("cpu", (world,))

    def state(factor: int) -> dict[str, Any]:
        full = distinct((5, 2), torch.int64) * factor
        return {
            "plain": full.clone(),
            "dtensor": placed(full, mesh, Shard(0)),
            "sharded": sharded(full, chunks(1, [3, 2])),
            "leaf": torch.nn.Parameter(full.float()),
        }

    a, b = state(1), state(3)

    assert check_state_dict_similarity(a, b)
    assert not check_state_dict_similarity(a, b | {"plain": None})
    assert not check_state_dict_similarity(a | {"plain": 4}, b)
    assert diff_state_dict(a, b)

    full = distinct((5, 2), torch.int64)
    assert_same(b["plain"], full * 3)
    assert_same(b["dtensor"].full_tensor(), full * 3)
    assert_same(b["sharded"].full_tensor(), full * 3)
    assert_same(b["leaf"], (full * 3).float())


def _live_state(world: int) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (world,))
    number = torch.tensor(2.5)
    return {
        "scalar": placed(number, mesh, Replicate()),
        "dtensor": placed(distinct((5, 2)), mesh, Shard(0)),
        "sharded": sharded(distinct((5, 2)), chunks(0, [3, 1, 2, 0])),
        "none here": sharded(distinct((5, 2)), chunks(0, [3])),
        "plain": distinct((5, 2)),
        "plain scalar": number.clone(),
    }


def _spoil(state: dict[str, Any]) -> None:
    """What a training step does: every tensor changes in place."""
    with torch.no_grad():
        for tensor in state.values():
            tensor.fill_(-1.0)


def _assert_as_before(snapshot: dict[str, Any]) -> None:
    full = distinct((5, 2))
    assert_same(snapshot["scalar"].full_tensor(), torch.tensor(2.5))
    assert_same(snapshot["dtensor"].full_tensor(), full)
    assert_same(snapshot["sharded"].full_tensor(), full)
    assert_same(snapshot["none here"].full_tensor(), full)
    assert_same(snapshot["plain"], full)
    assert_same(snapshot["plain scalar"], torch.tensor(2.5))


def b07_a_copy_shares_nothing_with_the_live_state(rank: int, world: int) -> None:
    state = _live_state(world)
    copied = copy_state_dict(state, create_cpu_state_dict(state))
    _spoil(state)
    _assert_as_before(copied)


def b07_a_staged_snapshot_never_changes(rank: int, world: int) -> None:
    """pytorch#145408: CPU tensors were aliased by staging."""
    stager = Stager()
    state = _live_state(world)
    snapshot = stager.stage(state)
    _spoil(state)
    _assert_as_before(snapshot.tree)
    later = stager.stage(state)
    _assert_as_before(snapshot.tree)
    snapshot.release()
    later.release()


def b08_offload_copies_unless_told_otherwise(rank: int, world: int) -> None:
    state = _live_state(world)
    copied = offload_state_dict_to_cpu(state)
    aliased = offload_state_dict_to_cpu(state, copy=False)
    some = offload_state_dict_to_cpu(state, ranks_only=(1, 2))
    _spoil(state)
    _assert_as_before(copied)
    assert aliased["plain"] is state["plain"]
    assert_same(aliased["plain"], torch.full((5, 2), -1.0))
    assert bool(some) == (rank in (1, 2))
    dist.barrier()


def b09_five_rows_on_four_ranks_are_staged_and_gathered(rank: int, world: int) -> None:
    full = distinct((5, 3))
    state = {"w": sharded(full, chunks(0, range(world)))}
    snapshot = Stager().stage(state)
    assert_holds(snapshot.tree["w"], full)
    assert_same(gather_state_dict(state, ranks_only=(3,)).get("w", full), full)


def b10_groups_without_rank_0(rank: int, world: int) -> None:
    full = distinct((5, 3), torch.int64)
    with subgroup([2, 3]) as group:
        if group is None:
            return
        mesh = DeviceMesh.from_group(group, "cpu")
        state = {
            "sharded": sharded(full, chunks(0, [3, 2]), group),
            "dtensor": placed(full, mesh, Shard(1)),
        }
        whole = gather_state_dict(state, pg=group, ranks_only=(1,))
        if rank == 3:
            assert_same(whole["sharded"], full)
            assert_same(whole["dtensor"], full)
        else:
            assert whole == {}

        local = {
            "sharded": sharded(full * 0, chunks(1, [3, 2]), group),
            "dtensor": blank(state["dtensor"]),
        }
        source = {"sharded": full, "dtensor": full} if rank == 3 else {}
        broadcast_state_dict(source, local, pg=group, src=1)
        assert_holds(local["sharded"], full)
        assert_same(local["dtensor"].to_local(), state["dtensor"].to_local())

        distribute_state_dict({"sharded": full * 2, "dtensor": full * 2}, local, pg=group)
        assert_holds(local["sharded"], full * 2)
        assert_same(local["dtensor"].full_tensor(), full * 2)


def b12_one_ranks_state_is_wrong(rank: int, world: int) -> None:
    mesh = init_device_mesh("cpu", (world,))
    good = {"w": placed(distinct((8, 2)), mesh, Shard(0)), "note": "fine"}
    odd = good | {"note": object()}

    with pytest.raises(RankInputError, match=r"(?s)failed on rank 2\n  rank 2: .*'note'"):
        gather_state_dict(odd if rank == 2 else good)
    assert_group_works()
    with pytest.raises(RankInputError, match=r"failed on rank 2\n  rank 2: .*ranks_only=\[7\]"):
        gather_state_dict(good, ranks_only=(7,) if rank == 2 else (1,))
    assert_group_works()
    with pytest.raises(RankFailedError, match=r"(?s)failed on rank 1\n  rank 1: .*'note'"):
        broadcast_state_dict({"note": object()}, {"w": blank(good["w"])}, src=1)
    assert_group_works()
    wide = placed(distinct((8, 3)), mesh, Shard(0))
    local = {"w": wide if rank == 2 else blank(good["w"])}
    with pytest.raises(RankInputError, match=r"rank 2: .*'w'.*\(8, 3\).*\(8, 2\)"):
        broadcast_state_dict({"w": distinct((8, 2))}, local)
    assert_group_works()
    with pytest.raises(ValueError, match=r"(?s)rank 0: src=0.*rank 3: src=1"):
        broadcast_state_dict({"w": distinct((8, 2))}, local, src=1 if rank == 3 else 0)
    assert_group_works()


def b12_ranks_with_different_keys(rank: int, world: int) -> None:
    mesh = init_device_mesh("cpu", (world,))
    state = {"w": placed(distinct((8, 2)), mesh, Shard(0))}
    if rank == 3:
        state["extra"] = state["w"]
    with pytest.raises(RanksDisagreeError, match=r"'extra'.*rank 3 only"):
        gather_state_dict(state)
    assert_group_works()


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


def b15_no_dims_and_no_cells_gather(rank: int, world: int) -> None:
    mesh = init_device_mesh("cpu", (world,))
    state = {
        "scalar": sharded(torch.tensor(2**25 + 1), boxes((2, Box((), ())))),
        "replicated": placed(torch.tensor(7.5), mesh, Replicate()),
        "no rows": sharded(torch.empty(0, 3), chunks(0, range(world))),
        "no columns": placed(torch.empty(5, 0), mesh, Shard(0)),
        "one row": placed(distinct((1, 3)), mesh, Shard(0)),
    }
    whole = gather_state_dict(state)
    assert_same(whole["scalar"], torch.tensor(2**25 + 1))
    assert_same(whole["replicated"], torch.tensor(7.5))
    assert_same(whole["no rows"], torch.empty(0, 3))
    assert_same(whole["no columns"], torch.empty(5, 0))
    assert_same(whole["one row"], distinct((1, 3)))


def b16_unknown_keys_with_cpu_offload(rank: int, world: int) -> None:
    mesh = init_device_mesh("cpu", (world,))
    full = {"w": distinct((5, 2)), "unknown": distinct((3,)), "note": "new", "other": 3}
    for strict in (False, True):
        local: dict[str, Any] = {
            "w": placed(torch.zeros(5, 2), mesh, Shard(0)),
            "note": "old",
            "mine": torch.ones(2),
        }
        broadcast_state_dict(full if rank == 0 else {}, local, cpu_offload=True, strict=strict)
        assert_same(local["w"].full_tensor(), full["w"])
        assert local["note"] == "new"
        assert "unknown" not in local
        assert ("mine" in local) == (not strict)


def b16_some_ranks_lack_a_key(rank: int, world: int) -> None:
    full = {"everywhere": distinct((5, 2)), "odd": distinct((3,), torch.int64)}
    local: dict[str, Any] = {"everywhere": torch.zeros(5, 2)}
    if rank % 2:
        local["odd"] = torch.zeros(3, dtype=torch.int64)
    broadcast_state_dict(full if rank == 2 else None, local, src=2)
    assert_same(local["everywhere"], full["everywhere"])
    if rank % 2:
        assert_same(local["odd"], full["odd"])
    else:
        assert list(local) == ["everywhere"]


def b16_ranks_outside_the_mesh(rank: int, world: int) -> None:
    mesh = DeviceMesh("cpu", [3, 1])
    full = {"w": distinct((5, 2)), "plain": distinct((4,))}
    state = {"w": placed(full["w"], mesh, Shard(0)), "plain": full["plain"]}

    for source in (0, 3):
        local = {"w": blank(state["w"]), "plain": torch.zeros(4)}
        broadcast_state_dict(full if rank == source else {}, local, src=source)
        assert_same(local["plain"], full["plain"])
        if rank in (1, 3):
            assert_same(local["w"].to_local(), state["w"].to_local())
        assert local["w"].shape == (5, 2)

    local = {"w": blank(state["w"]), "plain": torch.zeros(4)}
    distribute_state_dict(full, local)
    if rank in (1, 3):
        assert_same(local["w"].to_local(), state["w"].to_local())

    whole = gather_state_dict(state)
    assert_same(whole["w"], full["w"])
    whole = gather_state_dict(state, ranks_only=(0,))
    if rank == 0:
        assert_same(whole["w"], full["w"])


def b16_the_source_has_dtensors(rank: int, world: int) -> None:
    """pytorch#164843: values of the full state dict that are DTensors already."""
    mesh = init_device_mesh("cpu", (world,))
    full = {"w": distinct((5, 2)), "v": distinct((3,))}
    local = {key: placed(torch.zeros_like(value), mesh, Shard(0)) for key, value in full.items()}

    whole = {key: placed(value, mesh, Replicate()) for key, value in full.items()}
    broadcast_state_dict(whole, local, src=1)
    for key, value in full.items():
        assert_same(local[key].full_tensor(), value)

    cut = {key: placed(value, mesh, Shard(0)) for key, value in full.items()}
    with pytest.raises(RankInputError, match=r"(?s)rank 1: .*'w' is sharded.*gather_state_dict"):
        broadcast_state_dict(cut, local, src=1)
    assert_group_works()


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

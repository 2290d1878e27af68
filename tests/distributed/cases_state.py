"""State dicts on real ranks, where PyTorch's tools lose data, crash or alias."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from shardkeep import (
    Box,
    RankFailedError,
    RankInputError,
    RanksDisagreeError,
    Stager,
    broadcast_state_dict,
    check_state_dict_similarity,
    copy_state_dict,
    create_cpu_state_dict,
    diff_state_dict,
    distribute_state_dict,
    gather_state_dict,
    offload_state_dict_to_cpu,
)
from tests.distributed.dtensors import blank, placed
from tests.distributed.tensors import (
    assert_group_works,
    assert_holds,
    assert_same,
    boxes,
    chunks,
    distinct,
    sharded,
    subgroup,
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

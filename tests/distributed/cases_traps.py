"""Sharded tensors on real ranks: traps of PyTorch's API, and any tiling to any other."""

from __future__ import annotations

import itertools

import pytest
import torch

from shardkeep import (
    Box,
    EnumerableShardingSpec,
    Layout,
    Shard,
    ShardedTensor,
    ShardMetadata,
    init_from_local_shards,
)
from shardkeep.sharded import full, ones_like, rand, zeros_like
from tests.distributed.tensors import (
    as_sharded,
    assert_holds,
    assert_same,
    boxes,
    chunks,
    distinct,
    sharded,
    subgroup,
)


def empty_shards_on_some_ranks_gather(rank: int, world: int) -> None:
    """pytorch#150928: a rank may bring nothing, or shards without cells."""
    values = distinct((5, 2), torch.int64)
    pieces = {0: [values[:3]], 1: [], 2: [values[3:3]], 3: [values[3:3], values[3:]]}[rank]
    starts = {0: [0], 1: [], 2: [3], 3: [3, 3]}[rank]
    mine = [
        Shard.from_tensor_and_offsets(piece, (start, 0), rank)
        for piece, start in zip(pieces, starts, strict=True)
    ]
    tensor = init_from_local_shards(mine, 5, 2)

    assert_same(tensor.full_tensor(), values)
    gathered = tensor.gather(1)
    if rank == 1:
        assert_same(gathered, values)


def to_keeps_what_it_is_told(rank: int, world: int) -> None:
    values = distinct((5, 2), torch.int32).float()
    tensor = sharded(values, chunks(0, [3, 1, 2, 0]))
    for moved in (
        tensor.to("cpu", dtype=torch.float64),
        tensor.to("cpu", torch.float64),
        tensor.to("cpu", torch.float64, False),
        tensor.to("cpu", torch.float64, False, True),
        tensor.to(device="cpu", dtype=torch.float64),
        tensor.to(torch.float64),
        tensor.to(torch.zeros((), dtype=torch.float64)),
        as_sharded(tensor.double()),
    ):
        assert moved.dtype == torch.float64
        assert moved.metadata().tensor_properties.dtype == torch.float64
        assert_holds(moved, values.double())
    # The device that is named is the one it has: nothing to do.
    assert tensor.to("cpu") is tensor
    assert tensor.to(torch.device("cpu")) is tensor
    assert tensor.cpu() is tensor
    assert tensor.to("cpu", copy=True) is not tensor


def to_keeps_the_owners_of_all_shards(rank: int, world: int) -> None:
    tensor = sharded(distinct((5, 2)), chunks(0, [3, 1, 2, 0]))
    owners = [3, 1, 2, 0]
    for moved, device in ((tensor.to(torch.float64), "cpu"), (tensor.to("meta"), "meta")):
        placements = [str(record.placement) for record in moved.metadata().shards_metadata]
        assert placements == [f"rank:{owner}/{device}" for owner in owners]


def likes_keep_dtype_and_group(rank: int, world: int) -> None:
    with subgroup([1, 3]) as group:
        if group is None:
            return
        tensor = sharded(distinct((5, 2), torch.int16), chunks(0, [3, 1]), group)
        for made, value in ((zeros_like(tensor), 0), (ones_like(tensor), 1)):
            assert made.dtype == torch.int16
            assert made.process_group is group
            expected = torch.full((5, 2), value, dtype=torch.int16)
            assert_same(made.full_tensor(), expected)
        wide = zeros_like(tensor, dtype=torch.float64)
        assert_same(wide.full_tensor(), torch.zeros(5, 2, dtype=torch.float64))


def full_has_the_dtype_of_its_value(rank: int, world: int) -> None:
    made = full(chunks(0, range(world)), (5, 2), 2**25 + 1)
    assert_same(made.full_tensor(), torch.full((5, 2), 2**25 + 1))


def equal_seeds_make_different_shards(rank: int, world: int) -> None:
    torch.manual_seed(7)
    whole = rand(chunks(0, range(world)), 8, 5).full_tensor()
    assert len(set(whole.flatten().tolist())) == 40


def a_placement_without_a_rank_is_refused(rank: int, world: int) -> None:
    with pytest.raises(ValueError, match=r"owned by no rank.*rank:0/cpu"):
        ShardedTensor(EnumerableShardingSpec([ShardMetadata([0], [4], "cpu")]), 4)


def reshard_between_all_kinds_of_tilings(rank: int, world: int) -> None:
    values = distinct((7, 5), torch.int64)
    goals = [
        chunks(0, range(world)),
        chunks(1, [2, 0, 3, 1]),
        chunks(0, [1, 1, 2]),
        Layout.grid((7, 5), (2, 2), [3, 2, 1, 0]),
        boxes(
            (2, Box((0, 0), (4, 1))),
            (2, Box((4, 0), (7, 1))),
            (0, Box((0, 1), (7, 2))),
            (3, Box((0, 2), (2, 5))),
            (2, Box((2, 2), (7, 5))),
        ),
    ]
    start = sharded(values, chunks(0, range(world)))
    for first, second in itertools.product(goals, repeat=2):
        moved = start.reshard(first).reshard(second)
        assert_holds(moved, values)
        assert_same(moved.full_tensor(), values)


def fetch_brings_each_rank_its_own_box(rank: int, world: int) -> None:
    values = distinct((7, 5), torch.int64)
    tensor = sharded(values, chunks(0, [3, 1, 0, 2]))
    wanted = [None, Box((0, 0), (7, 5)), Box((2, 1), (6, 4)), Box((3, 3), (3, 5))][rank]
    found = tensor.fetch(wanted)
    if wanted is None:
        assert found is None
    else:
        assert_same(found, values[wanted.slices()])
    assert_same(
        tensor.fetch((slice(-2, None), slice(rank, rank + 1))), values[-2:, rank : rank + 1]
    )


def tensors_larger_than_a_message(rank: int, world: int) -> None:
    """Each rank's part travels in several messages, straight from memory or packed."""
    values = torch.arange(2500 * 2000, dtype=torch.float64).reshape(2500, 2000)
    rows = sharded(values, chunks(0, range(world)))
    columns = rows.reshard(chunks(1, [3, 0, 2, 1]))
    assert_holds(columns, values)
    for tensor in (rows, columns):
        gathered = tensor.gather(1)
        if rank == 1:
            assert_same(gathered, values)

"""One rank passes something wrong, or something else than the others: all ranks are told."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from shardkeep import (
    Box,
    RankFailedError,
    RanksDisagreeError,
    Shard,
    ShardingPlan,
    init_from_local_shards,
    shard_module,
    shard_parameter,
    shard_tensor,
)
from tests.distributed.tensors import (
    assert_group_works,
    chunks,
    distinct,
    sharded,
)


def _wrong_shards(rank: int) -> None:
    values = distinct((8, 2))
    offset = 2 * rank
    rows = values[offset : offset + 2]
    if rank == 2:
        rows = rows.t().contiguous().t()
    init_from_local_shards([Shard.from_tensor_and_offsets(rows, (offset, 0), rank)], 8, 2)


def _wrong_type(rank: int) -> None:
    shard = Shard.from_tensor_and_offsets(torch.zeros(2, 2), (2 * rank, 0), rank)
    mine = ["no shard"] if rank == 2 else [shard]
    init_from_local_shards(mine, 8, 2)  # type: ignore[arg-type]


def _wrong_size(rank: int) -> None:
    shard = Shard.from_tensor_and_offsets(torch.zeros(2, 2), (2 * rank, 0), rank)
    init_from_local_shards([shard], -8 if rank == 2 else 8, 2)


def _wrong_out(rank: int) -> None:
    tensor = sharded(distinct((8, 2)), chunks(0, range(4)))
    tensor.gather(2, torch.empty(8, 3) if rank == 2 else None)


def _wrong_goal(rank: int) -> None:
    tensor = sharded(distinct((8, 2)), chunks(0, range(4)))
    tensor.reshard(chunks(5 if rank == 2 else 1, range(4)))


def _no_goal(rank: int) -> None:
    tensor = sharded(distinct((8, 2)), chunks(0, range(4)))
    tensor.reshard("rows" if rank == 2 else chunks(1, range(4)))  # type: ignore[arg-type]


def _wrong_box(rank: int) -> None:
    tensor = sharded(distinct((8, 2)), chunks(0, range(4)))
    tensor.fetch(Box((0, 0), (9 if rank == 2 else 8, 2)))


def _wrong_spec(rank: int) -> None:
    spec = "rows" if rank == 2 else chunks(0, range(4))
    shard_tensor(distinct((8, 2)), spec)  # type: ignore[arg-type]


def _wrong_owner(rank: int) -> None:
    shard_tensor(distinct((8, 2)), chunks(0, [0, 1, 2, 9 if rank == 2 else 3]))


def _no_tensor(rank: int) -> None:
    values = None if rank == 2 else distinct((8, 2))
    shard_tensor(values, chunks(0, range(4)))  # type: ignore[arg-type]


def _no_parameter(rank: int) -> None:
    module = nn.Linear(3, 4, bias=rank != 2)
    shard_parameter(module, "bias", chunks(0, range(4)))


def _wrong_plan(rank: int) -> None:
    path = "missing.weight" if rank == 2 else "0.weight"
    shard_module(nn.Sequential(nn.Linear(3, 4)), ShardingPlan({path: chunks(0, range(4))}))


def _wrong_ids(rank: int) -> None:
    table = sharded(distinct((8, 2)), chunks(0, range(4)))
    nn.functional.embedding(torch.tensor([1, 8 if rank == 2 else 7]), table)


WRONG_ON_RANK_2 = {
    "shards": _wrong_shards,
    "type": _wrong_type,
    "size": _wrong_size,
    "out": _wrong_out,
    "goal": _wrong_goal,
    "no_goal": _no_goal,
    "box": _wrong_box,
    "spec": _wrong_spec,
    "owner": _wrong_owner,
    "no_tensor": _no_tensor,
    "no_parameter": _no_parameter,
    "plan": _wrong_plan,
    "ids": _wrong_ids,
}


def b12_one_ranks_mistake_is_everyones_error(rank: int, world: int, *, mistake: str) -> str:
    """What this rank was told."""
    # Rank 2 may raise what the mistake is, such as an AttributeError, with the same text.
    expected = Exception if rank == 2 else RankFailedError
    with pytest.raises(expected, match=r"failed on rank 2\n  rank 2: ") as caught:
        WRONG_ON_RANK_2[mistake](rank)
    assert_group_works()
    return str(caught.value)


def b12_ranks_that_want_different_things_are_told(rank: int, world: int) -> None:
    tensor = sharded(distinct((8, 2)), chunks(0, range(world)))
    with pytest.raises(RanksDisagreeError, match=r"(?s)ranks 0, 2-3: .*0.*rank 1: .*1"):
        tensor.gather(1 if rank == 1 else 0)
    with pytest.raises(RanksDisagreeError, match=r"(?s)rank 0: .*ranks 1-3: "):
        tensor.reshard(chunks(1 if rank == 0 else 0, range(world)))
    rows = torch.zeros(2, 2, dtype=torch.float64 if rank == 3 else torch.float32)
    mine = [Shard.from_tensor_and_offsets(rows, (2 * rank, 0), rank)]
    with pytest.raises(ValueError, match=r"dtype is float32 on rank 0, but float64 on rank 3"):
        init_from_local_shards(mine, 8, 2)
    assert_group_works()

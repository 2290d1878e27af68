"""Sharded tensors on real ranks, where PyTorch's lose data, crash or hang."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
import torch.distributed as dist
from torch import nn

from shardkeep import (
    Box,
    RankInputError,
    Shard,
    ShardedTensor,
    Sharder,
    ShardingPlan,
    init_from_local_shards,
    shard_module,
    shard_tensor,
)
from tests.distributed.tensors import (
    as_sharded,
    assert_group_works,
    assert_holds,
    assert_same,
    boxes,
    chunks,
    distinct,
    sharded,
    subgroup,
)

DTYPES = (
    *(torch.bool, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.int64, torch.uint64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
    *(torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2),
)


def b01_values_travel_in_the_tensors_dtype(rank: int, world: int) -> None:
    beyond_float32 = torch.arange(2**25 + 1, 2**25 + 15).reshape(7, 2)
    beyond_float64 = beyond_float32 + 2**53
    for values in (beyond_float32, beyond_float64, *(distinct((7, 3), dtype) for dtype in DTYPES)):
        tensor = sharded(values, chunks(0, range(world)))
        gathered = tensor.gather(2)
        if rank == 2:
            assert_same(gathered, values)
        else:
            assert gathered is None
        assert_same(tensor.full_tensor(), values)


def b01_a_conversion_is_asked_for_by_name(rank: int, world: int) -> None:
    values = torch.arange(2**25 + 1, 2**25 + 8)
    tensor = sharded(values, chunks(0, range(world)))
    out = torch.empty(7, dtype=torch.float64) if rank == 0 else None

    with pytest.raises(RankInputError, match=r"rank 0: .*out has dtype torch.float64.*int64"):
        tensor.gather(0, out)
    tensor.gather(0, out, dtype=torch.float64)

    if rank == 0:
        assert_same(out, values.double())


def b02_cells_are_placed_by_their_box(rank: int, world: int) -> None:
    values = distinct((8, 6), torch.int64)
    for spec in (
        chunks(1, range(world)),
        chunks(0, [2, 0, 3, 1]),
        chunks(0, [0, 1, 2, 3, 3, 2, 1, 0]),
        boxes(
            (3, Box((0, 0), (5, 2))),
            (3, Box((5, 0), (8, 2))),
            (0, Box((0, 2), (3, 6))),
            (1, Box((3, 2), (8, 6))),
        ),
    ):
        tensor = sharded(values, spec)
        assert_same(tensor.full_tensor(), values)
        gathered = tensor.gather(1)
        if rank == 1:
            assert_same(gathered, values)


def b06_a_gap_is_refused_everywhere(rank: int, world: int) -> None:
    values = distinct((8, 2))
    mine = [] if rank == 2 else [Shard.from_tensor_and_offsets(values[:2], (2 * rank, 0), rank)]
    with pytest.raises(ValueError, match=r"\[4:6, 0:2\]"):
        init_from_local_shards(mine, 8, 2)

    tensor = sharded(values, chunks(0, range(world)))
    with pytest.raises(ValueError, match=r"\[2:8, 0:2\]"):
        tensor.reshard(boxes((0, Box((0, 0), (2, 2)))))
    assert_same(tensor.full_tensor(), values)


def b09_five_rows_on_four_ranks(rank: int, world: int) -> None:
    values = distinct((5, 3))
    tensor = shard_tensor(values if rank == 0 else torch.zeros(5, 3), chunks(0, range(world)))

    offsets = [record.shard_offsets[0] for record in tensor.metadata().shards_metadata]
    assert offsets == [0, 2, 4, 5]
    assert_holds(tensor, values)
    for made in map(
        as_sharded,
        (tensor.clone(), tensor.detach(), copy.deepcopy(tensor), tensor.to(torch.float32)),
    ):
        assert_holds(made, values)
        assert_same(made.full_tensor(), values)
    wide = tensor.to(torch.float64)
    assert_holds(wide, values.double())
    assert wide.metadata().tensor_properties.dtype == torch.float64
    assert_same(tensor.full_tensor(), values)


def b10_a_group_without_rank_0(rank: int, world: int) -> None:
    values = distinct((5, 3), torch.int64)
    with subgroup([2, 3]) as group:
        if group is None:
            return
        tensor = sharded(values, chunks(0, [3, 2]), group)
        gathered = tensor.gather(1)
        if rank == 3:
            assert_same(gathered, values)
        else:
            assert gathered is None
        assert_same(tensor.full_tensor(), values)
        assert_same(tensor.fetch(Box((2, 1), (4, 3))), values[2:4, 1:3])

        spec = chunks(1, [2, 3])
        assert_holds(tensor.reshard(spec), values)
        mine = values if dist.get_rank(group) == 1 else torch.zeros_like(values)
        scattered = shard_tensor(mine, spec, src_rank=1, process_group=group)
        assert_holds(scattered, values)
        assert torch.equal(scattered, tensor)
        with pytest.raises(ValueError, match=r"owned by rank 1.*ranks \[2, 3\]"):
            sharded(values, chunks(0, [1, 2]), group)
        with pytest.raises(RankInputError, match=r"ranks 2-3: .*dst=2 .* group of 2"):
            tensor.gather(2)


def b11_reshard_to_every_order_of_ranks(rank: int, world: int) -> None:
    values = distinct((7, 2), torch.int64)
    start = sharded(values, chunks(0, [1, 2, 3, 0]))
    for order in itertools.permutations(range(world)):
        moved = start.reshard(chunks(0, order))
        assert [record.rank for record in moved.metadata().shards_metadata] == list(order)
        assert_holds(moved, values)


def b11_reshard_leaves_its_tensor_alone(rank: int, world: int) -> None:
    values = distinct((8, 4))
    tensor = sharded(values, chunks(0, range(world)))
    before = tensor.metadata()

    moved = tensor.reshard(chunks(1, [3, 2, 1, 0]))
    with torch.no_grad():
        moved.zero_()

    assert moved is not tensor
    assert tensor.metadata() == before
    assert_holds(tensor, values)


def b13_equal_and_allclose_agree_on_all_ranks(rank: int, world: int) -> None:
    values = torch.arange(14.0).reshape(7, 2)
    tensor = sharded(values, chunks(0, range(world)))
    other = sharded(values, chunks(1, [3, 1, 0, 2]))
    assert torch.equal(tensor, other) is True
    assert torch.allclose(tensor, other) is True

    # Only rank 3 holds a cell that differs, yet all ranks say so.
    near = as_sharded(tensor.clone())
    if rank == 3:
        near.local_shards()[0].tensor[0, 0] += 2.0
    assert torch.equal(tensor, near) is False
    assert torch.allclose(tensor, near) is False
    assert torch.allclose(tensor, near, 0.0, 2.5) is True
    assert torch.allclose(tensor, near, 0.0, 1.5) is False
    assert torch.allclose(tensor, near, rtol=0.0, atol=2.5) is True
    assert tensor.allclose(near, 0.0, 2.5) is True


class _Doubled(Sharder):
    """Puts a module of another class in the place of what it shards."""

    def shard(self, module: nn.Module) -> nn.Module:
        return nn.Identity()


class _Tables(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb1 = nn.Embedding(7, 3)
        self.emb10 = nn.Embedding(7, 3)
        self.inner = nn.Sequential(nn.Linear(3, 3))


def b14_a_sharder_replaces_its_module(rank: int, world: int) -> None:
    torch.manual_seed(rank)
    model = _Tables()
    table = distinct((7, 3))
    if rank == 1:
        model.emb10.weight.data.copy_(table)
    plan = ShardingPlan(
        {
            "emb1": _Doubled(),
            "emb10.weight": chunks(0, range(world)),
            "inner.0": _Doubled(),
        }
    )

    shard_module(model, plan, src_rank=1)

    assert isinstance(model.emb1, nn.Identity)
    assert isinstance(model.inner[0], nn.Identity)
    assert not hasattr(model, "mod_name")
    assert isinstance(model.emb10.weight, ShardedTensor)
    assert isinstance(model.emb10.weight, nn.Parameter)
    assert_holds(model.emb10.weight, table)


def b15_no_dims_and_no_cells(rank: int, world: int) -> None:
    number = torch.tensor(2**25 + 1)
    scalar = sharded(number, boxes((2, Box((), ()))))
    gathered = scalar.gather(3)
    assert (gathered is None) == (rank != 3)
    if rank == 3:
        assert_same(gathered, number)
    assert_same(scalar.full_tensor(), number)
    assert int(scalar.sum()) == 2**25 + 1

    for shape, dim in (((0, 3), 0), ((0, 3), 1), ((5, 0), 0)):
        nothing = sharded(torch.empty(shape), chunks(dim, range(world)))
        assert_same(nothing.full_tensor(), torch.empty(shape))
        gathered = nothing.gather(1)
        if rank == 1:
            assert_same(gathered, torch.empty(shape))
        assert_same(nothing.reshard(chunks(dim, [3, 2, 1, 0])).full_tensor(), torch.empty(shape))


def b15_out_on_a_rank_that_does_not_gather(rank: int, world: int) -> None:
    values = distinct((4, 2))
    tensor = sharded(values, chunks(0, range(world)))
    with pytest.raises(RankInputError, match=r"failed on ranks 1-3\n.*must pass out=None"):
        tensor.gather(0, torch.zeros(4, 2))
    assert_group_works()


def b15_a_rank_without_shards_answers_like_the_others(rank: int, world: int) -> None:
    tensor = sharded(distinct((3, 2)), chunks(0, range(3)))
    assert len(tensor.local_shards()) == (0 if rank == 3 else 1)

    assert tensor.is_meta is False
    assert tensor.device == torch.device("cpu")
    assert (tensor.dim(), tensor.numel(), tensor.stride()) == (2, 6, (2, 1))
    assert tensor.nbytes == 24
    assert tensor.is_floating_point()
    assert tensor.is_contiguous()
    doubled = as_sharded(tensor.clone().detach() * 2)
    assert doubled.dtype == torch.float32
    assert_same(doubled.full_tensor(), distinct((3, 2)) * 2)
    assert tensor.to("meta").is_meta is True

"""Which tensors do the cases use, and when are two of them the same?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist

from shardkeep import (
    Box,
    ChunkShardingSpec,
    EnumerableShardingSpec,
    ShardedTensor,
    ShardingSpec,
    ShardMetadata,
)


def distinct(shape: Sequence[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Cells whose bytes all differ, as far as the dtype allows: a misplaced one shows."""
    numel = math.prod(shape)
    if dtype == torch.bool:
        return (torch.arange(numel) * 5 % 7 < 3).reshape(tuple(shape))
    # Every byte counts, so that a detour through a narrower dtype shows, too.
    numbers = torch.arange(1, numel * dtype.itemsize + 1, dtype=torch.int64) * 37 % 251
    return numbers.to(torch.uint8).view(dtype).reshape(tuple(shape))


def assert_same(actual: object, expected: torch.Tensor) -> None:
    """A plain tensor of the same shape and dtype, equal to the last bit."""
    assert isinstance(actual, torch.Tensor), f"expected a tensor, got {actual!r}"
    assert type(actual) in (torch.Tensor, torch.nn.Parameter), f"got a {type(actual)}"
    assert actual.dtype == expected.dtype, f"{actual.dtype} instead of {expected.dtype}"
    assert actual.shape == expected.shape, f"{actual.shape} instead of {expected.shape}"
    same = torch.equal(bits(actual), bits(expected))
    assert same, f"values differ:\n{actual}\ninstead of\n{expected}"


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bytes in row-major order."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def on_ranks(ranks: Iterable[int]) -> list[str]:
    return [f"rank:{rank}/cpu" for rank in ranks]


def chunks(dim: int, ranks: Iterable[int]) -> ChunkShardingSpec:
    return ChunkShardingSpec(dim, on_ranks(ranks))


def boxes(*owned: tuple[int, Box]) -> EnumerableShardingSpec:
    return EnumerableShardingSpec(
        [ShardMetadata.of_box(box, f"rank:{rank}/cpu") for rank, box in owned]
    )


def sharded(full: torch.Tensor, spec: ShardingSpec, group: object = None) -> ShardedTensor:
    """`full`, which every rank has, cut by the spec: each rank fills its own shards."""
    made = ShardedTensor(spec, *full.shape, dtype=full.dtype, process_group=group)
    for shard in made.local_shards():
        shard.tensor.copy_(full[shard.metadata.box.slices()])
    return made


def as_sharded(tensor: torch.Tensor) -> ShardedTensor:
    """What an operator made of a sharded tensor, which must be one again."""
    assert isinstance(tensor, ShardedTensor), f"got a {type(tensor).__name__}"
    return tensor


def assert_holds(tensor: ShardedTensor, full: torch.Tensor) -> None:
    """Each local shard has its box of `full`; without any message."""
    assert tensor.shape == full.shape
    assert tensor.dtype == full.dtype
    for shard in tensor.local_shards():
        assert_same(shard.tensor, full[shard.metadata.box.slices()])


def assert_group_works(group: dist.ProcessGroup | None = None) -> None:
    """Nobody is left in an earlier act: the next collective goes through."""
    total = torch.ones((), dtype=torch.int64)
    dist.all_reduce(total, group=group)
    assert int(total) == dist.get_world_size(group)


@contextmanager
def subgroup(ranks: Sequence[int]) -> Iterator[dist.ProcessGroup | None]:
    """A group of these ranks, None on the others. SPMD over the world."""
    made = dist.new_group(list(ranks))
    group = made if isinstance(made, dist.ProcessGroup) else None
    yield group
    dist.barrier()
    if group is not None:
        dist.destroy_process_group(group)

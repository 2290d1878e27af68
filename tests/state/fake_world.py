"""How is one rank of four tested alone? The fake backend never waits for the others."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._shard import sharded_tensor as torch_sharded
from torch.distributed._shard.sharding_spec import ChunkShardingSpec as TorchChunkShardingSpec
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from shardkeep.sharded.sharded_tensor import ShardedTensor
from shardkeep.sharded.specs import ChunkShardingSpec

RANK, SIZE = 1, 4


@contextmanager
def fake_world() -> Iterator[None]:
    """Be rank 1 of 4."""
    dist.init_process_group("fake", store=FakeStore(), rank=RANK, world_size=SIZE)
    try:
        yield
    finally:
        dist.destroy_process_group()


def placements(ranks: range) -> list[Any]:
    return [f"rank:{rank}/cpu" for rank in ranks]


def numbers(*shape: int, start: int = 0) -> torch.Tensor:
    """Distinct float32 values."""
    return torch.arange(start, start + torch.Size(shape).numel(), dtype=torch.float32).view(shape)


def dtensor(local: torch.Tensor, placement: Placement | None = None) -> DTensor:
    """A DTensor of which this rank holds `local`, split by rows unless told otherwise."""
    mesh = init_device_mesh("cpu", (SIZE,))
    default = Shard(0) if local.dim() else Replicate()
    return DTensor.from_local(local, mesh, [placement or default], run_check=False)


def sharded(local: torch.Tensor) -> ShardedTensor:
    """Our ShardedTensor of four equal chunks, of which this rank holds `local`."""
    spec = ChunkShardingSpec(0, placements(range(SIZE)))
    made = ShardedTensor(spec, local.shape[0] * SIZE, *local.shape[1:], dtype=local.dtype)
    return made.with_local_tensors([local])


def shardless(*shape: int) -> ShardedTensor:
    """Our ShardedTensor that lies on ranks 2 and 3."""
    return ShardedTensor(ChunkShardingSpec(0, placements(range(2, 4))), *shape)


def torch_chunks(local: torch.Tensor) -> Any:
    """PyTorch's ShardedTensor of four equal chunks, of which this rank holds `local`."""
    spec = TorchChunkShardingSpec(0, placements(range(SIZE)))
    made = torch_sharded.empty(spec, local.shape[0] * SIZE, *local.shape[1:], dtype=local.dtype)
    made.local_shards()[0].tensor.copy_(local)
    return made


def torch_shardless(*shape: int) -> Any:
    """PyTorch's ShardedTensor that lies on ranks 2 and 3."""
    return torch_sharded.empty(TorchChunkShardingSpec(0, placements(range(2, 4))), *shape)

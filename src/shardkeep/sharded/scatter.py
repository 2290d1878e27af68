"""How does one rank's whole tensor become a sharded tensor of all?"""

from __future__ import annotations

import torch

from shardkeep.errors import InvalidError
from shardkeep.layouts import Layout
from shardkeep.plan import plan_moves
from shardkeep.ranks import RankGroup, Shipment, agree_equal, ship
from shardkeep.sharded.create import allocate
from shardkeep.sharded.metadata import TensorProperties
from shardkeep.sharded.sharded_tensor import ShardedTensor
from shardkeep.sharded.specs import ShardingSpec


def shard_tensor(
    tensor: torch.Tensor,
    sharding_spec: ShardingSpec,
    src_rank: int = 0,
    process_group: object = None,
) -> ShardedTensor:
    """The values of group rank `src_rank`, sharded by the spec. SPMD.

    Every rank passes a tensor of the same size and dtype; only the source's values count.
    """
    if isinstance(sharding_spec, ShardingSpec):  # pyright: ignore[reportUnnecessaryIsInstance]
        return sharding_spec.shard(tensor, src_rank, process_group)
    # Refused where all ranks hear of it.
    return scatter(tensor, sharding_spec, src_rank, process_group)


def scatter(
    tensor: torch.Tensor, spec: ShardingSpec, src_rank: int, process_group: object
) -> ShardedTensor:
    """Each owner's boxes of the source's tensor, straight from its memory."""
    group = RankGroup.of(process_group)
    made: list[ShardedTensor] = []

    def check() -> object:
        made.append(_allocate(tensor, spec, src_rank, process_group, group))
        records = made[0].metadata().shards_metadata
        boxes = [f"{record.box} on rank {record.rank}" for record in records]
        return [src_rank, list(tensor.shape), str(tensor.dtype), tensor.requires_grad, boxes]

    agree_equal(group, "shard_tensor", check)
    result = made[0]
    source = Layout.replicated(tensor.shape, [group.ranks[src_rank]])
    moves = plan_moves((source,), result.sharded_layout, group.me)
    targets = [shard.tensor for shard in result.local_shards()]
    shipment = Shipment(moves, tensor.dtype, [tensor.detach()], targets)
    ship(group, [shipment], what="shard_tensor")
    result.requires_grad_(tensor.requires_grad)
    return result


def _allocate(
    tensor: torch.Tensor,
    spec: ShardingSpec,
    src_rank: int,
    process_group: object,
    group: RankGroup,
) -> ShardedTensor:
    if not isinstance(tensor, torch.Tensor) or isinstance(tensor, ShardedTensor):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidError(f"only a plain tensor can be sharded, got {type(tensor).__name__}")
    if not 0 <= src_rank < group.size:
        raise InvalidError(f"src_rank={src_rank} is not a rank of a group of {group.size}")
    properties = TensorProperties(tensor.dtype)
    size = tuple(tensor.shape)
    return allocate(ShardedTensor, spec, (size,), properties, process_group, device=tensor.device)

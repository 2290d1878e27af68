"""How does a test get a sharded tensor of known values, without any communication?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from shardkeep.boxes import Box
from shardkeep.layouts import Layout
from shardkeep.ranks import RankGroup
from shardkeep.sharded import (
    ChunkShardingSpec,
    EnumerableShardingSpec,
    Shard,
    ShardedTensor,
    ShardedTensorMetadata,
    ShardingSpec,
    ShardMetadata,
    TensorProperties,
)

Owned = Iterable[tuple[int, Box]]


def owners(ranks: Iterable[int]) -> list[str]:
    """The CPUs of these ranks."""
    return [f"rank:{rank}/cpu" for rank in ranks]


def chunks(ranks: Iterable[int], dim: int = 0) -> ChunkShardingSpec:
    """One dim over these ranks, in this order."""
    return ChunkShardingSpec(dim, owners(ranks))


def listed(owned: Owned) -> EnumerableShardingSpec:
    """These boxes with their owners."""
    return EnumerableShardingSpec([record(rank, box) for rank, box in owned])


def record(rank: int, box: Box) -> ShardMetadata:
    return ShardMetadata.of_box(box, f"rank:{rank}/cpu")


def boxes_of(layout: Layout) -> list[tuple[int, Box]]:
    """The layout's boxes with their owners; of a tensor without cells, the whole on one rank."""
    owned = [(part.rank, part.box) for part in layout.parts()]
    return owned or [(layout.ranks[0], Box.whole(layout.shape))]


def sharded(full: torch.Tensor, how: ShardingSpec | Owned, group: object = None) -> Any:
    """`full` sharded by a spec or by listed boxes; nothing is communicated.

    Any: torch's own methods say that they return a Tensor, which keeps the checker from going on.
    """
    properties = TensorProperties(full.dtype)
    if isinstance(how, ShardingSpec):
        records = how.build_metadata(full.shape, properties).shards_metadata
    else:
        records = [record(rank, box) for rank, box in how]
    metadata = ShardedTensorMetadata(list(records), full.shape, properties)
    me = RankGroup.of(group).me
    shards = [
        Shard(full[each.box.slices()].detach().clone().contiguous(), each)
        for each in records
        if each.rank == me
    ]
    return ShardedTensor.from_local_shards_and_global_metadata(
        shards, metadata, process_group=group
    )


def whole(tensor: Any) -> torch.Tensor:
    """The values of a sharded tensor of which this process holds every shard."""
    assert isinstance(tensor, ShardedTensor)
    full = torch.empty(tensor.shape, dtype=tensor.dtype)
    for shard in tensor.local_shards():
        full[shard.metadata.box.slices()] = shard.tensor.detach()
    return full


def pieces(tensor: Any) -> Sequence[torch.Tensor]:
    """This rank's memory."""
    return [shard.tensor for shard in tensor.local_shards()]


def parameter(tensor: torch.Tensor, requires_grad: bool = True) -> Any:
    """The tensor as a module's parameter."""
    return nn.Parameter(tensor, requires_grad=requires_grad)


def is_parameter(value: object) -> bool:
    """As isinstance, which would narrow the type to one without a sharded tensor's methods."""
    return isinstance(value, nn.Parameter)

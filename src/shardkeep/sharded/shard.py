"""What does a rank hold of a sharded tensor?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from shardkeep.errors import InvalidError
from shardkeep.sharded.metadata import ShardMetadata
from shardkeep.sharded.remote_device import RemoteDevice


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """Local memory with the box that it holds. The tensor may itself be sharded."""

    tensor: torch.Tensor
    metadata: ShardMetadata

    def __post_init__(self) -> None:
        if tuple(self.tensor.shape) != self.metadata.shard_sizes:
            raise InvalidError(
                f"the shard's tensor has size {list(self.tensor.shape)}, "
                f"its metadata says {list(self.metadata.shard_sizes)}"
            )
        placement = self.metadata.placement
        if placement is not None and placement.device() != self.tensor.device:
            raise InvalidError(
                f"the shard's tensor is on {self.tensor.device}, "
                f"its placement says {placement.device()}"
            )

    @classmethod
    def from_tensor_and_offsets(
        cls, tensor: torch.Tensor, shard_offsets: Sequence[int], rank: int
    ) -> Shard:
        """A shard of global rank `rank` that starts at `shard_offsets`."""
        placement = RemoteDevice.on_rank(rank, tensor.device)
        return cls(tensor, ShardMetadata(shard_offsets, tuple(tensor.shape), placement))

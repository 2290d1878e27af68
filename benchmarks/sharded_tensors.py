"""Which sharded tensors are gathered and resharded in the comparison?"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._shard import sharded_tensor as torch_sharded
from torch.distributed._shard.sharding_spec import ChunkShardingSpec as TheirSpec

from benchmarks.contest import Case
from shardkeep import ChunkShardingSpec, ShardedTensor

SHAPE = (8192, 8192)
IN_ORDER = (0, 1, 2, 3)
# PyTorch's reshard along the same dim is right only where the permutation undoes itself.
SWAPPED = (1, 0, 3, 2)


def placements(ranks: Sequence[int]) -> list[str]:
    return [f"rank:{rank}/cpu" for rank in ranks]


class ShardedCase(Case):
    """An int32 tensor whose dim 0 is chunked over the ranks, once as each library's tensor."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self.shape = shape
        self.size = f"{4 * shape[0] * shape[1] / 2**20:.0f} MiB"

    def tiny(self) -> Case:
        # Each rank has 512 KiB: enough that it reads its neighbours, as the large one does.
        return type(self)((512, 1024))

    def prepare(self) -> None:
        first = dist.get_rank() * self.shape[0] // dist.get_world_size() * self.shape[1]
        numel = self.shape[0] * self.shape[1] // dist.get_world_size()
        self.local = torch.arange(first, first + numel, dtype=torch.int32).view(-1, self.shape[1])

    def reset(self) -> None:
        # PyTorch's reshard changes its tensor.
        self.torch_tensor = torch_sharded.ShardedTensor._init_from_local_tensor(  # pyright: ignore[reportPrivateImportUsage]
            self.local,
            TheirSpec(0, placements(IN_ORDER)),  # pyright: ignore[reportArgumentType]
            self.shape,  # pyright: ignore[reportArgumentType]
        )
        self.our_tensor = ShardedTensor.from_local_tensor(
            self.local, ChunkShardingSpec(0, placements(IN_ORDER)), self.shape
        )


class GatherOne(ShardedCase):
    task = "gather a sharded tensor"

    def prepare(self) -> None:
        super().prepare()
        self.out = torch.zeros(self.shape, dtype=torch.int32) if dist.get_rank() == 0 else None

    def reset(self) -> None:
        super().reset()
        if self.out is not None:
            self.out.zero_()

    def theirs(self) -> None:
        self.torch_tensor.gather(dst=0, out=self.out, dtype=torch.int32)

    def ours(self) -> None:
        self.our_tensor.gather(dst=0, out=self.out, dtype=torch.int32)

    def outcome(self, result: object) -> Sequence[torch.Tensor]:
        return [] if self.out is None else [self.out]


class Reshard(ShardedCase):
    dim: int
    ranks_after: tuple[int, ...]

    def theirs(self) -> Any:
        self.torch_tensor.reshard(TheirSpec(self.dim, placements(self.ranks_after)))  # pyright: ignore[reportArgumentType]
        return self.torch_tensor

    def ours(self) -> Any:
        spec = ChunkShardingSpec(self.dim, placements(self.ranks_after))
        return self.our_tensor.reshard(spec)

    def outcome(self, result: Any) -> Sequence[torch.Tensor]:
        return [shard.tensor for shard in result.local_shards()]


class ReshardDims(Reshard):
    task = "reshard dim 0 to dim 1"
    dim, ranks_after = 1, IN_ORDER


class ReshardRanks(Reshard):
    task = "reshard to swapped ranks"
    dim, ranks_after = 0, SWAPPED


def cases(quick: bool) -> list[Case]:
    shape = (SHAPE[0] // 2, SHAPE[1] // 2) if quick else SHAPE
    return [GatherOne(shape), ReshardDims(shape), ReshardRanks(shape)]

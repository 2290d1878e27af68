"""How are shards filled at random, so that equal seeds on all ranks do not make equal shards?"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import torch

from shardkeep.sharded.shard import Shard
from shardkeep.sharded.sharded_tensor import ShardedTensor


def shard_generators(tensor: ShardedTensor) -> Iterator[tuple[Shard, torch.Generator]]:
    """Each local shard with a generator of its own, seeded by this rank's RNG and its offsets.

    The RNG moves on by the same amount on every rank, however many shards it has.
    """
    base = int(torch.randint(0, 2**62, (), dtype=torch.int64))
    for shard in tensor.local_shards():
        salt = zlib.crc32(str(shard.metadata.shard_offsets).encode())
        generator = torch.Generator(device=shard.tensor.device)
        yield shard, generator.manual_seed((base ^ salt << 20) % 2**63)

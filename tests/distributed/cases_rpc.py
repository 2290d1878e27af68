"""Remote shards through torch RPC, which changes a process: these need ranks of their own."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
import torch.distributed.rpc as rpc

from shardkeep import Box, ChunkShardingSpec, Shard, ShardedTensor, init_from_local_shards
from shardkeep.sharded import zeros
from tests.distributed.tensors import assert_group_works, assert_same, chunks, distinct


def every_rank_reads_every_other_ranks_shards(rank: int, world: int) -> None:
    spec = chunks(0, range(world))
    with pytest.raises(RuntimeError, match=r"(?s)init_rrefs failed on ranks 0-3.*init_rpc"):
        ShardedTensor(spec, 7, 2, init_rrefs=True)
    assert_group_works()

    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=world)
    try:
        _read_remote_shards(rank, world)
        _place_by_worker_name(rank, world)
        _without_references(rank, world)
        _is_forgotten(world)
    finally:
        rpc.shutdown()


def _read_remote_shards(rank: int, world: int) -> None:
    full = distinct((7, 2), torch.int64)
    rows = {0: [(0, 3)], 1: [], 2: [(3, 4), (4, 6)], 3: [(6, 7)]}
    mine = [Shard.from_tensor_and_offsets(full[a:b], (a, 0), rank) for a, b in rows[rank]]
    tensor = init_from_local_shards(mine, 7, 2, init_rrefs=True)

    remote = tensor.remote_shards()

    assert sorted(remote) == [other for other in range(world) if other != rank]
    for other, references in remote.items():
        assert [reference.owner().id for reference in references] == [other] * len(rows[other])
        for reference, (start, stop) in zip(references, rows[other], strict=True):
            shard = reference.to_here()
            assert shard.metadata.box == Box((start, 0), (stop, 2))
            assert shard.metadata.rank == other
            assert_same(shard.tensor, full[start:stop])
    # Nobody lets go of its shards while others read them.
    assert_group_works()


def _place_by_worker_name(rank: int, world: int) -> None:
    spec = ChunkShardingSpec(0, [f"worker{other}/cpu" for other in (2, 0, 3, 1)])
    tensor = zeros(spec, 7, 2, init_rrefs=True)

    owners = [record.rank for record in tensor.metadata().shards_metadata]
    assert owners == [2, 0, 3, 1]
    tensor.local_tensor().fill_(rank + 10)
    expected = torch.tensor([12.0, 12, 10, 10, 13, 13, 11]).reshape(7, 1).expand(7, 2)
    assert_same(tensor.full_tensor(), expected.contiguous())
    peer = (rank + 1) % world
    (reference,) = tensor.remote_shards()[peer]
    assert float(reference.to_here().tensor[0, 0]) == peer + 10
    assert_group_works()

    with pytest.raises(ValueError, match=r"no RPC worker is called 'stranger'"):
        zeros(ChunkShardingSpec(0, ["stranger/cpu"]), 4)


def _without_references(rank: int, world: int) -> None:
    tensor = zeros(chunks(0, range(world)), 7, 2)
    with pytest.raises(RuntimeError, match=r"init_rrefs=True.*fetch\(box\)"):
        tensor.remote_shards()


def _is_forgotten(world: int) -> None:
    """References do not keep a tensor alive."""
    tensor = zeros(chunks(0, range(world)), 7, 2, init_rrefs=True)
    alive = weakref.ref(tensor)
    del tensor
    gc.collect()
    assert alive() is None

"""How are shards of other ranks reached through torch RPC, where a job uses it?"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any, TypeVar

import torch.distributed as dist

from shardkeep.errors import InvalidError
from shardkeep.ranks import RankGroup, agree
from shardkeep.sharded.metadata import ShardedTensorMetadata, ShardMetadata
from shardkeep.sharded.remote_device import RemoteDevice

if TYPE_CHECKING:
    from shardkeep.sharded.sharded_tensor import ShardedTensor

T = TypeVar("T", bound="ShardedTensor")

_tensors: weakref.WeakValueDictionary[int, ShardedTensor] = weakref.WeakValueDictionary()
_next_number = 0
_lock = threading.Lock()


def rank_metadata(metadata: ShardedTensorMetadata) -> ShardedTensorMetadata:
    """The metadata with RPC worker names turned into global ranks."""
    if all(_worker(shard) is None for shard in metadata.shards_metadata):
        return metadata
    records = [_on_rank(shard) for shard in metadata.shards_metadata]
    return ShardedTensorMetadata(records, metadata.size, metadata.tensor_properties)


def _worker(shard: ShardMetadata) -> str | None:
    return None if shard.placement is None else shard.placement.worker_name()


def _on_rank(shard: ShardMetadata) -> ShardMetadata:
    worker = _worker(shard)
    if worker is None or shard.placement is None:
        return shard
    placement = RemoteDevice.on_rank(_rank_of_worker(worker), shard.placement.device())
    return ShardMetadata(shard.shard_offsets, shard.shard_sizes, placement)


def _rank_of_worker(worker: str) -> int:
    rpc = _running_rpc(f"placement on worker {worker!r}")
    for info in rpc._get_current_rpc_agent().get_worker_infos():
        if info.name == worker:
            return int(info.id)
    raise InvalidError(f"no RPC worker is called {worker!r}")


def _running_rpc(what: str) -> Any:
    import torch.distributed.rpc as rpc

    if not rpc._is_current_rpc_agent_set():  # type: ignore[attr-defined]
        raise RuntimeError(
            f"{what} needs the RPC framework; call torch.distributed.rpc.init_rpc first, "
            "or name ranks instead of workers and use fetch(box)"
        )
    return rpc


def connect(tensor: T, group: RankGroup) -> T:
    """Exchange RPC references, so that `remote_shards()` knows every other rank's shards. SPMD."""
    facts = agree(group, "init_rrefs", lambda: str(_register(tensor, group)).encode())
    rpc = _running_rpc("init_rrefs")
    futures = {
        rank: rpc.rpc_async(rank, _references, args=(int(number),))
        for rank, number in zip(group.ranks, facts, strict=True)
        if rank != group.me
    }
    tensor.rrefs = {rank: future.wait() for rank, future in futures.items()}
    # A rank that went on could delete its tensor before another has its references.
    agree(group, "init_rrefs", bytes)
    return tensor


def _register(tensor: ShardedTensor, group: RankGroup) -> int:
    """A number under which other ranks find this tensor while it lives."""
    global _next_number
    rpc = _running_rpc("init_rrefs")
    worker = rpc.get_worker_info()
    if worker.id != dist.get_rank():
        raise InvalidError(
            f"RPC rank {worker.id} of this process differs from its rank {dist.get_rank()}"
        )
    with _lock:
        _next_number += 1
        _tensors[_next_number] = tensor
        return _next_number


def _references(number: int) -> list[Any]:
    """Runs on the owner: references to its shards."""
    import torch.distributed.rpc as rpc

    return [rpc.RRef(shard) for shard in _tensors[number].local_shards()]

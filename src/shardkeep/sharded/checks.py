"""Do shards, metadata and tensors fit together? Each check says which shard does not, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import torch

from shardkeep.boxes import check_tiling
from shardkeep.errors import CoverError, InvalidError
from shardkeep.ranks import RankGroup
from shardkeep.sharded.metadata import ShardedTensorMetadata, ShardMetadata, TensorProperties
from shardkeep.sharded.remote_device import RemoteDevice
from shardkeep.sharded.shard import Shard

if TYPE_CHECKING:
    from shardkeep.sharded.sharded_tensor import ShardedTensorBase


def parse_size(size: Sequence[object]) -> tuple[int, ...]:
    """A size given as numbers or as one sequence of numbers."""
    if len(size) == 1 and isinstance(size[0], Sequence):
        size = cast("Sequence[object]", size[0])
    for side in size:
        if isinstance(side, bool) or not isinstance(side, int):
            raise TypeError(f"a size is made of ints, got {side!r} in {list(size)!r}")
        if side < 0:
            raise InvalidError(f"a size must not be negative, got {list(size)!r}")
    return tuple(side for side in size if isinstance(side, int))


def require_supported(properties: TensorProperties) -> None:
    """Only dense, contiguous shards are made."""
    if properties.layout is not torch.strided:
        raise InvalidError(f"only layout torch.strided is supported, got {properties.layout}")
    if properties.memory_format is not torch.contiguous_format:
        raise InvalidError(
            f"only torch.contiguous_format is supported, got {properties.memory_format}"
        )


def require_whole(metadata: ShardedTensorMetadata) -> None:
    """The shards tile the tensor."""
    records = metadata.shards_metadata
    report = check_tiling(tuple(metadata.size), [record.box for record in records])
    if not report.is_tiling:
        named = report.describe(labels=[f"shard {record}" for record in records])
        raise CoverError(f"the shards do not make up the tensor: {named}")


def require_owners(metadata: ShardedTensorMetadata, group: RankGroup) -> None:
    """Every shard is owned by a rank of the group."""
    for shard in metadata.shards_metadata:
        if shard.rank is None:
            raise InvalidError(
                f"shard {shard} is owned by no rank; give it a placement such as 'rank:0/cpu'"
            )
        if shard.rank not in group:
            raise InvalidError(
                f"shard {shard} is owned by rank {shard.rank}, "
                f"but the group has ranks {list(group.ranks)}"
            )


def require_local(shards: Sequence[Shard], me: int) -> None:
    """My shards are dense, contiguous, mine, and alike."""
    for index, shard in enumerate(shards):
        _require_dense(shard.tensor, f"local shard {index}")
        if shard.metadata.placement is None:
            raise InvalidError(f"local shard {index} ({shard.metadata}) has no placement")
        if shard.metadata.rank != me:
            raise InvalidError(
                f"local shard {index} is placed on {shard.metadata.placement}, "
                f"but it is held by rank {me}"
            )
        _require_alike(shard.tensor, shards[0].tensor, f"local shard {index}", "local shard 0")


def _require_dense(tensor: torch.Tensor, what: str) -> None:
    if tensor.layout is not torch.strided:
        raise InvalidError(f"{what} has layout {tensor.layout}; only torch.strided is supported")
    if not tensor.is_contiguous():
        raise InvalidError(f"{what} is not contiguous; call .contiguous() on it first")


def _require_alike(tensor: torch.Tensor, other: torch.Tensor, what: str, other_what: str) -> None:
    for name, mine, theirs in (
        ("dtype", tensor.dtype, other.dtype),
        ("requires_grad", tensor.requires_grad, other.requires_grad),
        ("pin_memory", is_pinned(tensor), is_pinned(other)),
    ):
        if mine != theirs:
            raise InvalidError(f"{what} has {name}={mine}, {other_what} has {name}={theirs}")


def is_pinned(tensor: torch.Tensor) -> bool:
    """Whether a tensor lies in page-locked memory."""
    return tensor.device.type == "cpu" and tensor.is_pinned()


def require_matching(
    shards: Sequence[Shard], metadata: ShardedTensorMetadata, me: int
) -> list[Shard]:
    """My shards in the order in which the metadata lists mine."""
    wanted = [shard for shard in metadata.shards_metadata if shard.rank == me]
    if len(wanted) != len(shards):
        raise RuntimeError(
            f"rank {me} brings {len(shards)} local shards, the metadata lists {len(wanted)} for it"
        )
    # By the whole record: an empty shard may start where a real one does.
    by_record = {shard.metadata: shard for shard in shards}
    ordered: list[Shard] = []
    for record in wanted:
        shard = by_record.get(record)
        if shard is None:
            raise InvalidError(
                f"the metadata lists shard {record} for rank {me}, which brings "
                f"{', '.join(str(own.metadata) for own in shards)}"
            )
        _require_properties(shard, metadata.tensor_properties)
        ordered.append(shard)
    return ordered


def _require_properties(shard: Shard, properties: TensorProperties) -> None:
    what, tensor = f"shard {shard.metadata}", shard.tensor
    _require_dense(tensor, what)
    for name, mine, theirs in (
        ("dtype", tensor.dtype, properties.dtype),
        ("requires_grad", tensor.requires_grad, properties.requires_grad),
        ("pin_memory", is_pinned(tensor), properties.pin_memory),
    ):
        if mine != theirs:
            raise InvalidError(f"{what} has {name}={mine}, the metadata says {name}={theirs}")


def replaced_shards(
    like: ShardedTensorBase,
    tensors: Sequence[torch.Tensor],
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[ShardedTensorMetadata, list[Shard]]:
    """Metadata and shards with the boxes of `like` in the memory of `tensors`."""
    old_records = [shard.metadata for shard in like.local_shards()]
    new_records = [
        ShardMetadata(
            record.shard_offsets, record.shard_sizes, _moved(record.placement, tensor.device)
        )
        for record, tensor in zip(old_records, tensors, strict=True)
    ]
    shards = [Shard(tensor, record) for tensor, record in zip(tensors, new_records, strict=True)]
    # Several empty shards of a rank may have equal records.
    mine = dict(zip(old_records, new_records, strict=True))
    old = like.metadata()
    records = [
        mine[record] if record in mine else _moved_elsewhere(record, device)
        for record in old.shards_metadata
    ]
    properties = TensorProperties(dtype, pin_memory=any(is_pinned(tensor) for tensor in tensors))
    return ShardedTensorMetadata(records, old.size, properties), shards


def _moved(placement: RemoteDevice | None, device: torch.device) -> RemoteDevice | None:
    return None if placement is None else placement.on_device(device)


def _moved_elsewhere(record: ShardMetadata, device: torch.device) -> ShardMetadata:
    """Another rank's shard: it moves to the same type of device, but its index is not mine."""
    placement = record.placement
    if placement is None or placement.device().type == device.type:
        return record
    moved = placement.on_device(torch.device(device.type))
    return ShardMetadata(record.shard_offsets, record.shard_sizes, moved)

"""How does a sharded tensor come to be: allocated, or put together from what ranks hold?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeVar, cast

import torch

from shardkeep.errors import InvalidError
from shardkeep.ranks import RankGroup, agree
from shardkeep.sharded.checks import (
    is_pinned,
    parse_size,
    require_local,
    require_matching,
    require_owners,
    require_supported,
    require_whole,
)
from shardkeep.sharded.metadata import ShardedTensorMetadata, ShardMetadata, TensorProperties
from shardkeep.sharded.remote import connect, rank_metadata
from shardkeep.sharded.shard import Shard
from shardkeep.sharded.sharded_tensor import ShardedTensor
from shardkeep.sharded.specs import ShardingSpec

T = TypeVar("T", bound=ShardedTensor)


def allocate(
    cls: type[T],
    spec: ShardingSpec,
    size: Sequence[object],
    properties: TensorProperties,
    process_group: object,
    *,
    init_rrefs: bool = False,
    device: torch.device | None = None,
) -> T:
    """A sharded tensor whose local shards are fresh, uninitialised memory.

    `device` is what a rank without shards says of it.
    """
    if not isinstance(spec, ShardingSpec):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidError(f"expected a ShardingSpec, got {type(spec).__name__}")
    require_supported(properties)
    group = RankGroup.of(process_group)
    metadata = checked_metadata(spec, parse_size(size), properties, group)
    shards = [
        Shard(empty_shard(record, properties), record)
        for record in metadata.shards_metadata
        if record.rank == group.me
    ]
    made = cls.in_group(metadata, shards, spec, process_group, device)
    return connect(made, group) if init_rrefs else made


def checked_metadata(
    spec: ShardingSpec, size: tuple[int, ...], properties: TensorProperties, group: RankGroup
) -> ShardedTensorMetadata:
    """What the spec makes of `size`: a tiling, each shard owned by a rank of the group."""
    metadata = rank_metadata(spec.build_metadata(size, properties))
    require_owners(metadata, group)
    require_whole(metadata)
    return metadata


def empty_shard(record: ShardMetadata, properties: TensorProperties) -> torch.Tensor:
    """Uninitialised memory for one shard, on the device that its placement names."""
    device = record.placement.device() if record.placement is not None else None
    return torch.empty(
        record.shard_sizes,
        dtype=properties.dtype,
        device=device,
        requires_grad=properties.requires_grad,
        pin_memory=properties.pin_memory,
    )


def from_local_shards(
    cls: type[T],
    local_shards: Sequence[Shard],
    global_size: Sequence[object],
    process_group: object,
    init_rrefs: bool,
) -> T:
    """Put together what each rank brings; every rank sees every rank's mistake."""
    group = RankGroup.of(process_group)
    facts = agree(
        group,
        "init_from_local_shards",
        lambda: json.dumps(_describe(local_shards, global_size, group.me)).encode(),
    )
    descriptions = [json.loads(fact) for fact in facts]
    metadata = _merge(descriptions, group)
    shards = _my_shards(local_shards, metadata, group.me)
    made = cls.in_group(metadata, shards, None, process_group)
    return connect(made, group) if init_rrefs else made


def _describe(shards: Sequence[Shard], global_size: Sequence[object], me: int) -> dict[str, Any]:
    """What a rank brings, as JSON."""
    if any(not isinstance(shard, Shard) for shard in shards):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError("local_shards is a list of Shard")
    require_local(shards, me)
    size = _size_or_none(global_size, shards)
    first = shards[0].tensor if shards else None
    return {
        "size": size,
        "shards": [
            [
                record.shard_offsets,
                record.shard_sizes,
                str(record.placement),
            ]
            for record in (shard.metadata for shard in shards)
        ],
        "dtype": None if first is None else str(first.dtype).removeprefix("torch."),
        "requires_grad": None if first is None else first.requires_grad,
        "pin_memory": None if first is None else is_pinned(first),
    }


def _size_or_none(global_size: Sequence[object], shards: Sequence[Shard]) -> list[int] | None:
    """The global size; None when rows are to be counted up over the ranks."""
    if len(global_size) == 1 and isinstance(global_size[0], Sequence):
        global_size = cast("Sequence[object]", global_size[0])
    if all(side is not None for side in global_size):
        return list(parse_size(global_size))
    if len(shards) != 1:
        raise InvalidError(
            f"a size with None needs exactly one local shard on each rank, got {len(shards)}"
        )
    return None


def _merge(descriptions: Sequence[dict[str, Any]], group: RankGroup) -> ShardedTensorMetadata:
    """The metadata of all ranks' shards; the same error on all ranks if they do not fit."""
    size = _common(descriptions, "size", group, skip_absent=False)
    holders = [description for description in descriptions if description["shards"]]
    if not holders:
        raise InvalidError("no rank brings a shard; at least one shard is needed")
    properties = TensorProperties(
        getattr(torch, _common(descriptions, "dtype", group)),
        requires_grad=_common(descriptions, "requires_grad", group),
        pin_memory=_common(descriptions, "pin_memory", group),
    )
    records = [
        ShardMetadata(offsets, sizes, placement)
        for description in descriptions
        for offsets, sizes, placement in description["shards"]
    ]
    if size is None:
        size, records = _stack_rows(records)
    metadata = ShardedTensorMetadata(records, torch.Size(size), properties)
    require_owners(metadata, group)
    require_whole(metadata)
    return metadata


def _common(
    descriptions: Sequence[dict[str, Any]], name: str, group: RankGroup, skip_absent: bool = True
) -> Any:
    """What all ranks say of `name`; ranks without shards say nothing of their tensors."""
    said = [
        (rank, description[name])
        for rank, description in zip(group.ranks, descriptions, strict=True)
        if description["shards"] or not skip_absent
    ]
    first_rank, first = said[0]
    for rank, value in said[1:]:
        if value != first:
            raise InvalidError(
                f"init_from_local_shards: {name} is {first} on rank {first_rank}, "
                f"but {value} on rank {rank}"
            )
    return first


def _stack_rows(records: Sequence[ShardMetadata]) -> tuple[list[int], list[ShardMetadata]]:
    """One shard a rank, stacked along dim 0 in rank order."""
    rows = 0
    stacked: list[ShardMetadata] = []
    for record in records:
        if not record.shard_sizes:
            raise InvalidError("rows of a 0-dim tensor cannot be counted; give the size")
        offsets = (rows, *(0,) * (len(record.shard_sizes) - 1))
        stacked.append(ShardMetadata(offsets, record.shard_sizes, record.placement))
        rows += record.shard_sizes[0]
    return [rows, *records[0].shard_sizes[1:]], stacked


def _my_shards(shards: Sequence[Shard], metadata: ShardedTensorMetadata, me: int) -> list[Shard]:
    """My shards with the records as listed for all (the offsets of stacked rows are new)."""
    mine = [record for record in metadata.shards_metadata if record.rank == me]
    return [Shard(shard.tensor, record) for shard, record in zip(shards, mine, strict=True)]


def from_global_metadata(
    cls: type[T],
    local_shards: Sequence[Shard],
    metadata: ShardedTensorMetadata,
    process_group: object,
    init_rrefs: bool,
    spec: ShardingSpec | None,
) -> T:
    """My shards under metadata that all ranks hold alike."""
    group = RankGroup.of(process_group)
    if not metadata.shards_metadata:
        raise InvalidError("the metadata lists no shard")
    if metadata.tensor_properties.layout is not torch.strided:
        raise InvalidError(
            f"only layout torch.strided is supported, got {metadata.tensor_properties.layout}"
        )
    metadata = rank_metadata(metadata)
    require_owners(metadata, group)
    require_whole(metadata)
    shards = require_matching(local_shards, metadata, group.me)
    made = cls.in_group(metadata, shards, spec, process_group)
    return connect(made, group) if init_rrefs else made


def from_local_tensor(
    cls: type[T],
    local_tensor: torch.Tensor,
    spec: ShardingSpec,
    global_size: Sequence[object],
    process_group: object,
    init_rrefs: bool,
) -> T:
    """My only shard's tensor under the spec that all ranks hold alike."""
    if not local_tensor.is_contiguous():
        raise InvalidError("the local tensor is not contiguous; call .contiguous() on it first")
    group = RankGroup.of(process_group)
    properties = TensorProperties.create_from_tensor(local_tensor)
    metadata = checked_metadata(spec, parse_size(global_size), properties, group)
    mine = [record for record in metadata.shards_metadata if record.rank == group.me]
    if len(mine) != 1:
        raise InvalidError(
            f"the spec gives {len(mine)} shards to rank {group.me}; one local tensor fills one"
        )
    shard = Shard(local_tensor, mine[0])
    made = cls.in_group(metadata, [shard], spec, process_group)
    return connect(made, group) if init_rrefs else made

"""How does a sharded tensor pass through pickle, for torch.save within one job?"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

import torch.distributed as dist
from torch import nn

from shardkeep.ranks import RankGroup
from shardkeep.sharded.metadata import ShardedTensorMetadata
from shardkeep.sharded.shard import Shard
from shardkeep.sharded.sharded_tensor import ShardedTensor
from shardkeep.sharded.specs import ShardingSpec

_loading_group: ContextVar[object] = ContextVar("_loading_group", default=None)


@contextmanager
def load_with_process_group(process_group: object) -> Generator[object]:
    """Sharded tensors unpickled inside live in `process_group`. May be nested."""
    token = _loading_group.set(process_group)
    try:
        yield process_group
    finally:
        _loading_group.reset(token)


def _seats(group: RankGroup) -> dict[str, int]:
    """Where this process stands: the shards of a rank load on that rank only."""
    world = dist.get_world_size() if dist.is_initialized() else 1
    return {
        "group rank": group.my_index,
        "global rank": group.me,
        "group size": group.size,
        "world size": world,
    }


def reduce(tensor: ShardedTensor) -> tuple[Any, ...]:
    """What pickle keeps: this rank's shards, the metadata and where this process stands."""
    state = (
        type(tensor),
        tensor.metadata(),
        list(tensor.local_shards()),
        tensor.given_spec,
        _seats(tensor.rank_group),
        tensor.requires_grad,
        isinstance(tensor, nn.Parameter),
    )
    return rebuild, state


def rebuild(
    cls: type[ShardedTensor],
    metadata: ShardedTensorMetadata,
    shards: list[Shard],
    spec: ShardingSpec | None,
    seats: dict[str, int],
    requires_grad: bool,
    is_parameter: bool,
) -> ShardedTensor:
    """The tensor again, on the rank and in a group of the size that it was saved on."""
    process_group = _loading_group.get()
    if process_group is None and not dist.is_initialized() and seats["world size"] > 1:
        raise RuntimeError(
            "this ShardedTensor was saved by a process group; "
            "call torch.distributed.init_process_group before loading it"
        )
    for name, now in _seats(RankGroup.of(process_group)).items():
        if now != seats[name]:
            raise RuntimeError(
                f"this ShardedTensor was saved with {name} {seats[name]}, it is loaded with "
                f"{name} {now}; pickled shards load on the rank and size they were saved on"
            )
    made = cls.in_group(metadata, shards, spec, process_group)
    made.requires_grad_(requires_grad)
    if is_parameter:
        return cast("ShardedTensor", nn.Parameter(made, requires_grad=requires_grad))
    return made

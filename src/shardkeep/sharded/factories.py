"""Sharded tensors with given values, made without communication.

Each takes a sharding spec and a size, as numbers or as one sequence, and the keywords of
`ShardedTensor`: dtype, requires_grad, pin_memory, process_group, init_rrefs, ...
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from shardkeep.sharded.remote import connect
from shardkeep.sharded.shard import Shard
from shardkeep.sharded.sharded_tensor import ShardedTensor
from shardkeep.sharded.specs import ShardingSpec


def empty(sharding_spec: ShardingSpec, *size: int | Sequence[int], **options: Any) -> ShardedTensor:
    """Uninitialised memory."""
    return ShardedTensor(sharding_spec, *size, **options)


def full(
    sharding_spec: ShardingSpec,
    size: int | Sequence[int],
    fill_value: complex,
    *,
    dtype: torch.dtype | None = None,
    **options: Any,
) -> ShardedTensor:
    """Every cell `fill_value`, in its dtype (as torch.full) unless one is given."""
    dtype = dtype or torch.full((), fill_value).dtype
    return _made(sharding_spec, (size,), {"dtype": dtype, **options}, _constant(fill_value))


def zeros(sharding_spec: ShardingSpec, *size: int | Sequence[int], **options: Any) -> ShardedTensor:
    """Every cell 0."""
    return _made(sharding_spec, size, options, _constant(0))


def ones(sharding_spec: ShardingSpec, *size: int | Sequence[int], **options: Any) -> ShardedTensor:
    """Every cell 1."""
    return _made(sharding_spec, size, options, _constant(1))


def rand(sharding_spec: ShardingSpec, *size: int | Sequence[int], **options: Any) -> ShardedTensor:
    """Uniform in [0, 1). Each shard has numbers of its own, also when all ranks share a seed."""
    return _made(sharding_spec, size, options, torch.Tensor.uniform_)


def randn(sharding_spec: ShardingSpec, *size: int | Sequence[int], **options: Any) -> ShardedTensor:
    """Standard normal. Each shard has numbers of its own, also when all ranks share a seed."""
    return _made(sharding_spec, size, options, torch.Tensor.normal_)


Fill = Callable[[torch.Tensor], object]


def _made(
    spec: ShardingSpec, size: Sequence[Any], options: dict[str, Any], fill: Fill
) -> ShardedTensor:
    """A filled tensor; other ranks learn of its memory only when it has its values."""
    init_rrefs = options.pop("init_rrefs", False)
    made = ShardedTensor(spec, *size, **options)
    with torch.no_grad():
        fill(made)
    return connect(made, made.rank_group) if init_rrefs else made


def _constant(value: complex) -> Fill:
    return lambda tensor: tensor.fill_(value)


def init_from_local_shards(
    local_shards: Sequence[Shard],
    *global_size: int | Sequence[int] | None,
    process_group: object = None,
    init_rrefs: bool = False,
) -> ShardedTensor:
    """A sharded tensor of the shards that each rank brings. SPMD; ranks may bring none.

    With None in the size, each rank brings one shard and they are stacked along dim 0.
    """
    return ShardedTensor.from_local_shards(
        local_shards, *global_size, process_group=process_group, init_rrefs=init_rrefs
    )


def empty_like(tensor: ShardedTensor, **options: Any) -> ShardedTensor:
    """As torch.empty_like: the same boxes, owners and group."""
    return torch.empty_like(tensor, **options)  # type: ignore[return-value]


def zeros_like(tensor: ShardedTensor, **options: Any) -> ShardedTensor:
    """As torch.zeros_like."""
    return torch.zeros_like(tensor, **options)  # type: ignore[return-value]


def ones_like(tensor: ShardedTensor, **options: Any) -> ShardedTensor:
    """As torch.ones_like."""
    return torch.ones_like(tensor, **options)  # type: ignore[return-value]


def full_like(tensor: ShardedTensor, fill_value: complex, **options: Any) -> ShardedTensor:
    """As torch.full_like."""
    return torch.full_like(tensor, fill_value, **options)  # type: ignore[return-value]


def rand_like(tensor: ShardedTensor, **options: Any) -> ShardedTensor:
    """As torch.rand_like, each shard with numbers of its own."""
    return torch.rand_like(tensor, **options)  # type: ignore[return-value]


def randn_like(tensor: ShardedTensor, **options: Any) -> ShardedTensor:
    """As torch.randn_like, each shard with numbers of its own."""
    return torch.randn_like(tensor, **options)  # type: ignore[return-value]

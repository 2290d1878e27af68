"""Are two sharded tensors the same? All ranks give the same answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch

from shardkeep.errors import InvalidError
from shardkeep.ranks import agree
from shardkeep.sharded.sharded_tensor import ShardedTensor


def equal(first: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether size, dtype and every value are equal, whatever the layouts."""

    def same(a: torch.Tensor, b: torch.Tensor) -> bool:
        return a.dtype == b.dtype and torch.equal(_comparable(a), _comparable(b))

    return _compare("torch.equal", first, other, same)


def allclose(
    first: torch.Tensor,
    other: torch.Tensor,
    rtol: float = 1e-05,
    atol: float = 1e-08,
    equal_nan: bool = False,
) -> bool:
    """Whether every value is close, whatever the layouts."""

    def close(a: torch.Tensor, b: torch.Tensor) -> bool:
        a, b = _comparable(a), _comparable(b)
        return torch.allclose(a, b, rtol=rtol, atol=atol, equal_nan=equal_nan)

    return _compare("torch.allclose", first, other, close)


def _compare(
    what: str,
    first: torch.Tensor,
    other: torch.Tensor,
    same: Callable[[torch.Tensor, torch.Tensor], bool],
) -> bool:
    if not (isinstance(first, ShardedTensor) and isinstance(other, ShardedTensor)):
        return _refuse(what, first, other)
    if first.shape != other.shape:
        return False
    if first.sharded_layout != other.sharded_layout:
        other = other.reshard(first.sharded_layout)
    pairs = list(zip(first.local_shards(), other.local_shards(), strict=True))

    def mine() -> bytes:
        return b"\1" if all(same(a.tensor.detach(), b.tensor.detach()) for a, b in pairs) else b"\0"

    return all(answer == b"\1" for answer in agree(first.rank_group, what, mine))


def _refuse(what: str, first: torch.Tensor, other: torch.Tensor) -> bool:
    """Raise on all ranks: the others may be waiting to compare."""
    tensor = first if isinstance(first, ShardedTensor) else cast("ShardedTensor", other)

    def fail() -> bytes:
        raise InvalidError(
            f"{what} compares two sharded tensors, got {type(first).__name__} and "
            f"{type(other).__name__}; use full_tensor() to compare with a plain one"
        )

    return bool(agree(tensor.rank_group, what, fail))


def _comparable(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in a dtype that torch compares: the narrowest ones are only stored."""
    if tensor.dtype is torch.complex32:
        return tensor.to(torch.complex64)
    is_8_bit = tensor.dtype.is_floating_point and tensor.dtype.itemsize == 1
    return tensor.to(torch.float32) if is_8_bit else tensor


FUNCTIONS: dict[Any, Callable[..., bool]] = {
    torch.equal: equal,
    torch.Tensor.equal: equal,
    torch.allclose: allclose,
    torch.Tensor.allclose: allclose,
}

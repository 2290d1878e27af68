"""What are the sum, mean, extremes and norm over all shards? All ranks get the same bits.

Each rank reduces its own shards in a wide dtype, the partial results are exchanged, and every
rank combines them in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import torch

from shardkeep.errors import InvalidError, UnsupportedError
from shardkeep.ranks import agree
from shardkeep.sharded.sharded_tensor import ShardedTensor

Reduce = Callable[[torch.Tensor], torch.Tensor]


def sum_(
    tensor: ShardedTensor, dim: object = None, *, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """The sum of all cells, in the dtype that torch.sum gives."""
    _require_all_dims("sum", dim)
    result_dtype = dtype or _sum_dtype(tensor.dtype)
    wide = _wide_dtype(result_dtype)
    total = _combine(tensor, "sum", wide, lambda x: x.sum(dtype=wide), torch.sum)
    return total.to(result_dtype)


def mean(
    tensor: ShardedTensor, dim: object = None, *, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """The mean of all cells; nan for an empty tensor."""
    _require_all_dims("mean", dim)
    result_dtype = dtype or tensor.dtype
    if not (result_dtype.is_floating_point or result_dtype.is_complex):
        raise RuntimeError(f"mean needs a floating point or complex dtype, got {result_dtype}")
    return (sum_(tensor, dtype=_wide_dtype(result_dtype)) / tensor.numel()).to(result_dtype)


def _extreme(name: str, reduce: Reduce) -> Callable[..., torch.Tensor]:
    def extreme(tensor: ShardedTensor, dim: object = None, *args: object) -> torch.Tensor:
        if isinstance(dim, torch.Tensor):
            return NotImplemented  # torch.min(a, b) is elementwise.
        if args:
            raise UnsupportedError(f"{name} of a ShardedTensor takes no further argument")
        _require_all_dims(name, dim)
        if not tensor.numel():
            raise InvalidError(f"{name} of a tensor without cells is undefined")
        if tensor.dtype.is_complex:
            raise RuntimeError(f"{name} is undefined for {tensor.dtype}")
        return _combine(tensor, name, tensor.dtype, reduce, reduce)

    return extreme


def norm(
    tensor: ShardedTensor,
    p: float | str = 2,
    dim: object = None,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
    out: None = None,
) -> torch.Tensor:
    """The p-norm over all cells; inf and -inf give the largest and smallest magnitude."""
    _require_all_dims("norm", dim)
    if out is not None:
        raise UnsupportedError("norm of a ShardedTensor takes no out; copy the result into it")
    order = _order(p)
    result_dtype = dtype or tensor.dtype
    if not (result_dtype.is_floating_point or result_dtype.is_complex):
        raise RuntimeError(f"norm needs a floating point or complex dtype, got {result_dtype}")
    if result_dtype.is_complex:
        result_dtype = torch.empty((), dtype=result_dtype).real.dtype
    result = _norm(tensor, order).to(result_dtype)
    return result.reshape((1,) * tensor.ndim) if keepdim else result


def vector_norm(
    tensor: ShardedTensor,
    ord: float = 2,
    dim: object = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """As norm, with the arguments of torch.linalg.vector_norm."""
    return norm(tensor, ord, dim, keepdim, dtype)


def _order(p: float | str) -> float:
    if p == "fro":
        return 2.0
    if isinstance(p, str):
        raise InvalidError(f"norm {p!r} is not a vector norm; give a number, inf or 'fro'")
    return float(p)


def _norm(tensor: ShardedTensor, order: float) -> torch.Tensor:
    if math.isinf(order):
        if not tensor.numel():
            raise InvalidError("the inf-norm of a tensor without cells is undefined")
        reduce = torch.amax if order > 0 else torch.amin
        return _combine(tensor, "norm", torch.float64, lambda x: reduce(_magnitudes(x)), reduce)
    if order == 0:
        return _combine(
            tensor, "norm", torch.float64, lambda x: (_magnitudes(x) != 0).sum(), torch.sum
        )
    powers = _combine(
        tensor, "norm", torch.float64, lambda x: (_magnitudes(x) ** order).sum(), torch.sum
    )
    return powers ** (1.0 / order)


def _magnitudes(tensor: torch.Tensor) -> torch.Tensor:
    wide = torch.complex128 if tensor.dtype.is_complex else torch.float64
    return tensor.to(wide).abs()


def _require_all_dims(name: str, dim: object) -> None:
    if dim is not None and dim != ():
        raise UnsupportedError(
            f"{name} of a ShardedTensor reduces all dims; for dim={dim!r} use full_tensor()"
        )


def _sum_dtype(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype.is_floating_point or dtype.is_complex else torch.int64


def _wide_dtype(dtype: torch.dtype) -> torch.dtype:
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else torch.int64


def _combine(
    tensor: ShardedTensor, name: str, dtype: torch.dtype, part: Reduce, whole: Reduce
) -> torch.Tensor:
    """`part` of each shard, then `whole` over the parts of all ranks, in rank order."""

    def mine() -> bytes:
        parts = [
            part(shard.tensor.detach()).to("cpu", dtype)
            for shard in tensor.local_shards()
            if shard.tensor.numel()
        ]
        return b"".join(bytes(piece.reshape(1).view(torch.uint8).numpy()) for piece in parts)

    answers = agree(tensor.rank_group, f"ShardedTensor.{name}", mine)
    joined = bytearray().join(answers)
    empty = torch.zeros(0, dtype=dtype)
    partials = torch.frombuffer(joined, dtype=dtype) if joined else empty
    return whole(partials).to(tensor.device)


def any_(tensor: ShardedTensor, dim: object = None) -> torch.Tensor:
    """Whether some cell is not zero."""
    _require_all_dims("any", dim)
    return _combine(tensor, "any", torch.bool, torch.any, torch.any)


def all_(tensor: ShardedTensor, dim: object = None) -> torch.Tensor:
    """Whether no cell is zero."""
    _require_all_dims("all", dim)
    return _combine(tensor, "all", torch.bool, torch.all, torch.all)


FUNCTIONS: dict[Any, Callable[..., torch.Tensor]] = {
    torch.any: any_,
    torch.Tensor.any: any_,
    torch.all: all_,
    torch.Tensor.all: all_,
    torch.sum: sum_,
    torch.Tensor.sum: sum_,
    torch.mean: mean,
    torch.Tensor.mean: mean,
    torch.min: _extreme("min", torch.amin),
    torch.Tensor.min: _extreme("min", torch.amin),
    torch.amin: _extreme("min", torch.amin),
    torch.Tensor.amin: _extreme("min", torch.amin),
    torch.max: _extreme("max", torch.amax),
    torch.Tensor.max: _extreme("max", torch.amax),
    torch.amax: _extreme("max", torch.amax),
    torch.Tensor.amax: _extreme("max", torch.amax),
    cast("Any", torch).norm: norm,
    cast("Any", torch.Tensor).norm: norm,
    cast("Any", torch.linalg).vector_norm: vector_norm,
}

"""What are the sum, mean, extremes and norm over all shards? All ranks get the same bits.

Each rank reduces its own shards in a wide dtype, the partial results are exchanged, and every
rank combines them in the same order. Arguments are looked at within the exchange: if they are
wrong on one rank, all raise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from shardkeep.errors import InvalidError, UnsupportedError
from shardkeep.ranks import agree
from shardkeep.sharded.sharded_tensor import ShardedTensor

Reduce = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Reduction:
    """How to reduce: each shard, then the results of all shards, then what is left."""

    dtype: torch.dtype
    """Of the partial results."""
    part: Reduce
    whole: Reduce
    finish: Reduce

    def of_shards(self, tensor: ShardedTensor) -> bytes:
        """The results of this rank's shards."""
        parts = [
            self.part(shard.tensor.detach()).to("cpu", self.dtype)
            for shard in tensor.local_shards()
            if shard.tensor.numel()
        ]
        return b"".join(bytes(piece.reshape(1).view(torch.uint8).numpy()) for piece in parts)

    def of_all(self, results: Sequence[bytes]) -> torch.Tensor:
        """The result over all ranks."""
        joined = bytearray().join(results)
        empty = torch.zeros(0, dtype=self.dtype)
        partials = torch.frombuffer(joined, dtype=self.dtype) if joined else empty
        return self.finish(self.whole(partials))


def _reducer(name: str, plan: Callable[..., Reduction]) -> Callable[..., torch.Tensor]:
    """The torch function that carries out what `plan` makes of its arguments."""

    def reduce(tensor: ShardedTensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if args and isinstance(args[0], torch.Tensor):
            return NotImplemented  # torch.min(a, b) is elementwise.
        planned: list[Reduction] = []

        def mine() -> bytes:
            planned.append(plan(tensor, *args, **kwargs))
            return planned[0].of_shards(tensor)

        answers = agree(tensor.rank_group, f"ShardedTensor.{name}", mine)
        return planned[0].of_all(answers).to(tensor.device)

    return reduce


def _sum(
    tensor: ShardedTensor, dim: object = None, *, dtype: torch.dtype | None = None
) -> Reduction:
    _require_all_dims("sum", dim)
    result_dtype = dtype or _sum_dtype(tensor.dtype)
    wide = _wide_dtype(result_dtype)
    return Reduction(
        wide, lambda x: x.sum(dtype=wide), torch.sum, lambda total: total.to(result_dtype)
    )


def _mean(
    tensor: ShardedTensor, dim: object = None, *, dtype: torch.dtype | None = None
) -> Reduction:
    _require_all_dims("mean", dim)
    result_dtype = _require_real_or_complex("mean", dtype or tensor.dtype)
    wide = _wide_dtype(result_dtype)
    return Reduction(
        wide,
        lambda x: x.sum(dtype=wide),
        torch.sum,
        lambda total: (total / tensor.numel()).to(result_dtype),
    )


def _extreme(name: str, reduce: Reduce) -> Callable[..., Reduction]:
    def extreme(tensor: ShardedTensor, dim: object = None, *args: object) -> Reduction:
        if args:
            raise UnsupportedError(f"{name} of a ShardedTensor takes no further argument")
        _require_all_dims(name, dim)
        if not tensor.numel():
            raise InvalidError(f"{name} of a tensor without cells is undefined")
        if tensor.dtype.is_complex:
            raise RuntimeError(f"{name} is undefined for {tensor.dtype}")
        return Reduction(tensor.dtype, reduce, reduce, _as_is)

    return extreme


def _truth(name: str, reduce: Reduce) -> Callable[..., Reduction]:
    def truth(tensor: ShardedTensor, dim: object = None) -> Reduction:
        _require_all_dims(name, dim)
        return Reduction(torch.bool, reduce, reduce, _as_is)

    return truth


def _norm(
    tensor: ShardedTensor,
    p: float | str = 2,
    dim: object = None,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
    out: None = None,
) -> Reduction:
    _require_all_dims("norm", dim)
    if out is not None:
        raise UnsupportedError("norm of a ShardedTensor takes no out; copy the result into it")
    result_dtype = _require_real_or_complex("norm", dtype or tensor.dtype)
    if result_dtype.is_complex:
        result_dtype = torch.empty((), dtype=result_dtype).real.dtype
    shape = (1,) * tensor.ndim if keepdim else ()
    part, whole, root = _norm_parts(tensor, _order(p))
    return Reduction(torch.float64, part, whole, lambda x: root(x).to(result_dtype).reshape(shape))


def _vector_norm(
    tensor: ShardedTensor,
    ord: float = 2,
    dim: object = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Reduction:
    return _norm(tensor, ord, dim, keepdim, dtype)


def _norm_parts(tensor: ShardedTensor, order: float) -> tuple[Reduce, Reduce, Reduce]:
    """What to do with a shard, with all shards' results, and with the total."""
    if math.isinf(order):
        if not tensor.numel():
            raise InvalidError("the inf-norm of a tensor without cells is undefined")
        reduce = torch.amax if order > 0 else torch.amin
        return lambda x: reduce(_magnitudes(x)), reduce, _as_is
    if order == 0:
        return lambda x: (_magnitudes(x) != 0).sum(), torch.sum, _as_is
    return lambda x: (_magnitudes(x) ** order).sum(), torch.sum, lambda x: x ** (1.0 / order)


def _order(p: float | str) -> float:
    if p == "fro":
        return 2.0
    if isinstance(p, str):
        raise InvalidError(f"norm {p!r} is not a vector norm; give a number, inf or 'fro'")
    return float(p)


def _as_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _magnitudes(tensor: torch.Tensor) -> torch.Tensor:
    wide = torch.complex128 if tensor.dtype.is_complex else torch.float64
    return tensor.to(wide).abs()


def _require_all_dims(name: str, dim: object) -> None:
    if dim is not None and dim != ():
        raise UnsupportedError(
            f"{name} of a ShardedTensor reduces all dims; for dim={dim!r} use full_tensor()"
        )


def _require_real_or_complex(name: str, dtype: torch.dtype) -> torch.dtype:
    if not (dtype.is_floating_point or dtype.is_complex):
        raise RuntimeError(f"{name} needs a floating point or complex dtype, got {dtype}")
    return dtype


def _sum_dtype(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype.is_floating_point or dtype.is_complex else torch.int64


def _wide_dtype(dtype: torch.dtype) -> torch.dtype:
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else torch.int64


_any = _reducer("any", _truth("any", torch.any))
_all = _reducer("all", _truth("all", torch.all))
_total = _reducer("sum", _sum)
_average = _reducer("mean", _mean)
_least = _reducer("min", _extreme("min", torch.amin))
_most = _reducer("max", _extreme("max", torch.amax))
_length = _reducer("norm", _norm)

FUNCTIONS: dict[Any, Callable[..., torch.Tensor]] = {
    torch.any: _any,
    torch.Tensor.any: _any,
    torch.all: _all,
    torch.Tensor.all: _all,
    torch.sum: _total,
    torch.Tensor.sum: _total,
    torch.mean: _average,
    torch.Tensor.mean: _average,
    torch.min: _least,
    torch.Tensor.min: _least,
    torch.amin: _least,
    torch.Tensor.amin: _least,
    torch.max: _most,
    torch.Tensor.max: _most,
    torch.amax: _most,
    torch.Tensor.amax: _most,
    cast("Any", torch).norm: _length,
    cast("Any", torch.Tensor).norm: _length,
    cast("Any", torch.linalg).vector_norm: _reducer("norm", _vector_norm),
}

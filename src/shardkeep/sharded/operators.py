"""What happens to the shards when torch runs an operator on a sharded tensor?

Elementwise operators run on each shard by itself and need no communication. Everything else
that is not listed here is refused: a wrong result would be silent.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch.utils import _pytree as pytree

from shardkeep.errors import ConflictError, UnsupportedError
from shardkeep.sharded.random_fill import shard_generators
from shardkeep.sharded.sharded_tensor import ShardedTensor, ShardedTensorBase

aten = torch.ops.aten

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Handler = Callable[[Any, Args, Kwargs], object]


def run(func: Any, args: Args, kwargs: Kwargs) -> object:
    """The operator's result: the same boxes with new memory, or the same memory changed."""
    handler = _HANDLERS.get(func)
    if handler is not None:
        return handler(func, args, kwargs)
    if _is_elementwise(func):
        return _each_shard(func, args, kwargs)
    if torch.Tag.nondeterministic_seeded in func.tags and _is_in_place(func):
        return _random_in_place(func, args, kwargs)
    raise UnsupportedError(
        f"{func} is not supported for ShardedTensor; use local_shards() for what each rank holds, "
        "full_tensor() for the whole, or register an implementation with custom_sharded_op_impl"
    )


def _is_in_place(func: Any) -> bool:
    # By its name: the tag that says so is not in every torch that we support.
    return func._schema.name.endswith("_")


@functools.cache
def _is_elementwise(func: Any) -> bool:
    if torch.Tag.pointwise in func.tags or func in _ELEMENTWISE:
        return True
    # Torch tags abs, but not its twin that works in place.
    if func.namespace != "aten" or not _is_in_place(func):
        return False
    name = func._schema.name.removeprefix("aten::").removesuffix("_")
    twin = getattr(getattr(aten, name, None), func._overloadname, None)
    return twin is not None and _is_elementwise(twin)


def _sharded(args: Args, kwargs: Kwargs) -> list[ShardedTensor]:
    flat: list[object] = pytree.tree_leaves((args, kwargs))
    found = [leaf for leaf in flat if isinstance(leaf, ShardedTensorBase)]
    for leaf in found:
        if not isinstance(leaf, ShardedTensor):
            raise UnsupportedError(
                f"a {type(leaf).__name__} only keeps shards; compute with ShardedTensor"
            )
    return cast("list[ShardedTensor]", found)


def _each_shard(func: Any, args: Args, kwargs: Kwargs) -> object:
    """Run an elementwise operator on each local shard."""
    tensors = _sharded(args, kwargs)
    first = tensors[0]
    for other in tensors[1:]:
        _require_same_layout(func, first, other)
    _require_scalars(func, args, kwargs)
    count = len(first.local_shards())
    if func._schema.is_mutable:
        return _in_place(func, args, kwargs, count)
    results = [func(*_at(args, i), **_at(kwargs, i)) for i in range(count)]
    # A rank without shards learns the result's dtype from an empty stand-in.
    sample = results[0] if results else func(*_at(args, None), **_at(kwargs, None))
    if not isinstance(sample, torch.Tensor):
        raise UnsupportedError(f"{func} gives several results, which ShardedTensor cannot hold")
    return first.with_local_tensors(results, dtype=sample.dtype, device=sample.device)


def _in_place(func: Any, args: Args, kwargs: Kwargs, count: int) -> object:
    changed = kwargs.get("out", args[0])
    if not isinstance(changed, ShardedTensor):
        raise UnsupportedError(f"{func} cannot write a ShardedTensor's values to a plain tensor")
    for i in range(count):
        func(*_at(args, i), **_at(kwargs, i))
    return changed


def _at(tree: Any, index: int | None) -> Any:
    """The arguments with each sharded tensor replaced by its shard, or by an empty stand-in."""

    def pick(leaf: object) -> object:
        if not isinstance(leaf, ShardedTensor):
            return leaf
        if index is None:
            shape = (0,) * leaf.ndim
            # Not empty(): a 0-dim stand-in has a value, and one may divide by it.
            return torch.ones(shape, dtype=leaf.dtype, device=leaf.device)
        return leaf.local_shards()[index].tensor

    return pytree.tree_map(pick, tree)


def _require_same_layout(func: Any, first: ShardedTensor, other: ShardedTensor) -> None:
    if first is not other and first.sharded_layout != other.sharded_layout:
        raise ConflictError(
            f"{func} needs equally laid-out sharded tensors; "
            "bring one to the other's layout first: b = b.reshard(a.sharding_spec())\n"
            f"first:\n{first.sharded_layout.describe()}\n"
            f"other:\n{other.sharded_layout.describe()}"
        )


def _require_scalars(func: Any, args: Args, kwargs: Kwargs) -> None:
    for leaf in pytree.tree_leaves((args, kwargs)):
        if isinstance(leaf, torch.Tensor) and not isinstance(leaf, ShardedTensor) and leaf.ndim:
            raise UnsupportedError(
                f"{func} cannot combine a ShardedTensor with a plain tensor of size "
                f"{list(leaf.shape)}; shard that one first: shard_tensor(plain, a.sharding_spec())"
            )


def _detach(func: Any, args: Args, kwargs: Kwargs) -> object:
    tensor = _sharded(args, kwargs)[0]
    return tensor.with_local_tensors([shard.tensor.detach() for shard in tensor.local_shards()])


def _to_copy(func: Any, args: Args, kwargs: Kwargs) -> object:
    tensor = _sharded(args, kwargs)[0]
    copies = [func(shard.tensor, **kwargs) for shard in tensor.local_shards()]
    device = torch.device(kwargs["device"]) if kwargs.get("device") is not None else None
    return tensor.with_local_tensors(copies, dtype=kwargs.get("dtype"), device=device)


def _copy(func: Any, args: Args, kwargs: Kwargs) -> object:
    target, source = args[0], args[1]
    if not isinstance(target, ShardedTensor):
        raise UnsupportedError(
            "a ShardedTensor cannot be copied into a plain tensor; use gather() or full_tensor()"
        )
    for mine, theirs in zip(target.local_shards(), _pieces_for(target, source), strict=True):
        mine.tensor.detach().copy_(theirs.detach(), *args[2:], **kwargs)
    return target


def _pieces_for(target: ShardedTensor, source: torch.Tensor) -> Sequence[torch.Tensor]:
    """What each of my shards takes from `source`: a shard alike, or its box of a whole tensor."""
    if source.shape != target.shape:
        raise ConflictError(
            f"copy_ needs equal sizes, got {list(target.shape)} and {list(source.shape)}"
        )
    if isinstance(source, ShardedTensor):
        _require_same_layout("copy_", target, source)
        return [shard.tensor for shard in source.local_shards()]
    return [source[shard.metadata.box.slices()] for shard in target.local_shards()]


def _random_in_place(func: Any, args: Args, kwargs: Kwargs) -> object:
    tensor = _sharded(args, kwargs)[0]
    if kwargs.get("generator") is not None:
        for shard in tensor.local_shards():
            func(shard.tensor, *args[1:], **kwargs)
        return tensor
    rest = {key: value for key, value in kwargs.items() if key != "generator"}
    for shard, generator in shard_generators(tensor):
        func(shard.tensor, *args[1:], **rest, generator=generator)
    return tensor


def _random_like(func: Any, args: Args, kwargs: Kwargs) -> object:
    made = cast("ShardedTensor", _to_copy(aten.empty_like.default, args, kwargs))
    fill = _RANDOM_FILLS[func]
    for shard, generator in shard_generators(made):
        fill(shard.tensor, generator=generator)
    return made


def _full_like(func: Any, args: Args, kwargs: Kwargs) -> object:
    made = cast("ShardedTensor", _to_copy(aten.empty_like.default, args[:1], kwargs))
    for shard in made.local_shards():
        shard.tensor.fill_(args[1])
    return made


# Not tagged as elementwise, yet each cell depends on itself alone.
_ELEMENTWISE = {
    aten.fill_.Scalar,
    aten.fill_.Tensor,
    aten.fill.Scalar,
    aten.zero_.default,
    aten.floor_divide.default,
    aten.floor_divide.Scalar,
    aten.floor_divide_.Tensor,
    aten.hardswish.default,
}

_RANDOM_FILLS: dict[Any, Callable[..., torch.Tensor]] = {
    aten.rand_like.default: torch.Tensor.uniform_,
    aten.randn_like.default: torch.Tensor.normal_,
}

_HANDLERS: dict[Any, Handler] = {
    aten.detach.default: _detach,
    aten.alias.default: _detach,
    aten._to_copy.default: _to_copy,
    aten.copy_.default: _copy,
    aten.empty_like.default: _to_copy,
    aten.zeros_like.default: _to_copy,
    aten.ones_like.default: _to_copy,
    aten.full_like.default: _full_like,
    aten.rand_like.default: _random_like,
    aten.randn_like.default: _random_like,
}

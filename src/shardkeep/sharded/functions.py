"""Which implementation serves a torch function on a sharded tensor?

First one that the user registered, then one registered for the tensor's sharding spec, then
ours, and at last torch itself, which ends in `operators`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
from torch.utils import _pytree as pytree

from shardkeep.errors import InvalidError, UnsupportedError
from shardkeep.sharded import comparing, embedding, reductions
from shardkeep.sharded.sharded_tensor import ShardedTensor, ShardedTensorBase
from shardkeep.sharded.specs import ShardingSpec

Function = Callable[..., object]
OpImpl = Callable[[Sequence[type], tuple[Any, ...], dict[str, Any], object], object]

# Inside, torch treats sharded tensors as any tensor, down to their operators.
_without_us: Any = torch._C.DisableTorchFunctionSubclass  # pyright: ignore[reportPrivateUsage]

_user_ops: dict[Function, OpImpl] = {}
_spec_ops: dict[tuple[type[ShardingSpec], Function], OpImpl] = {}


def call(
    func: Function, types: Sequence[type], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> object:
    """The result of `func`, by whoever implements it for these arguments."""
    # `Tensor.add` made by attribute access is a new object each time, but hashes alike.
    if (_user_ops or _spec_ops) and (tensor := _first_sharded(args, kwargs)) is not None:
        impl = _user_ops.get(func) or _spec_op(tensor.sharding_spec(), func)
        if impl is not None:
            return impl(types, args, kwargs, tensor.process_group)
    ours = _OURS.get(func)
    if ours is not None:
        result = ours(*args, **kwargs)
        if result is not NotImplemented:
            return result
    with _without_us():
        return func(*args, **kwargs)


def _sharded_leaves(args: object, kwargs: object) -> Iterator[ShardedTensor]:
    for leaf in pytree.tree_leaves((args, kwargs)):
        if isinstance(leaf, ShardedTensor):
            yield leaf


def _first_sharded(args: object, kwargs: object) -> ShardedTensor | None:
    return next(_sharded_leaves(args, kwargs), None)


def _spec_op(spec: ShardingSpec, func: Function) -> OpImpl | None:
    for spec_class in type(spec).__mro__:
        impl = _spec_ops.get((spec_class, func))
        if impl is not None:
            return impl
    return None


def custom_sharded_op_impl(func: Function) -> Callable[[OpImpl], OpImpl]:
    """A decorator that makes a function the implementation of `func` for sharded tensors.

    It is called as `impl(types, args, kwargs, process_group)`.
    """

    def register(impl: OpImpl) -> OpImpl:
        _user_ops[func] = _checked(impl)
        return impl

    return register


def custom_sharding_spec_op(
    sharding_spec_class: type[ShardingSpec], func: Function
) -> Callable[[OpImpl], OpImpl]:
    """As custom_sharded_op_impl, for tensors with this class of spec or a subclass of it."""

    def register(impl: OpImpl) -> OpImpl:
        _spec_ops[sharding_spec_class, func] = _checked(impl)
        return impl

    return register


def _checked(impl: OpImpl) -> OpImpl:
    parameters = inspect.signature(impl).parameters
    if len(parameters) != 4:
        raise TypeError(
            "an op implementation takes (types, args, kwargs, process_group), "
            f"got {inspect.signature(impl)}"
        )

    @functools.wraps(impl)
    def checked(
        types: Sequence[type], args: tuple[Any, ...], kwargs: dict[str, Any], group: object
    ) -> object:
        if not args and not kwargs:
            raise InvalidError("a sharded op needs at least one input")
        groups = {id(leaf.process_group) for leaf in _sharded_leaves(args, kwargs)}
        if len(groups) > 1:
            raise RuntimeError("all sharded tensors of an op must live in the same process group")
        return impl(types, args, kwargs, group)

    return checked


def _requires_grad(tensor: ShardedTensorBase, requires_grad: bool = True) -> torch.Tensor:
    with _without_us():
        torch.Tensor.requires_grad_(tensor, requires_grad)
    for shard in tensor.local_shards():
        shard.tensor.requires_grad_(requires_grad)
    return tensor


def _set_data(tensor: ShardedTensorBase, value: torch.Tensor) -> None:
    # As `module.to(dtype)` does: torch changes the wrapper alone, the shards have to follow.
    if not isinstance(value, ShardedTensorBase):
        raise UnsupportedError(
            f"the data of a ShardedTensor is a ShardedTensor, got {type(value).__name__}; "
            "copy_() takes the values of a plain tensor"
        )
    with _without_us():
        _DATA.__set__(tensor, value)
    tensor.hold_shards_of(value)


def _share_memory(tensor: ShardedTensorBase) -> torch.Tensor:
    # The wrapper has no memory of its own: torch's own share_memory_ would crash the process.
    for shard in tensor.local_shards():
        shard.tensor.share_memory_()
    return tensor


def _is_shared(tensor: ShardedTensorBase) -> bool:
    return all(cast("bool", shard.tensor.is_shared()) for shard in tensor.local_shards())


_DATA: Any = torch.Tensor.data
_REQUIRES_GRAD: Any = torch.Tensor.requires_grad

_OURS: dict[Function, Callable[..., Any]] = {
    torch.Tensor.requires_grad_: _requires_grad,
    _REQUIRES_GRAD.__set__: _requires_grad,
    _DATA.__set__: _set_data,
    torch.Tensor.share_memory_: _share_memory,
    torch.Tensor.is_shared: _is_shared,
    **cast("dict[Function, Callable[..., Any]]", comparing.FUNCTIONS),
    **cast("dict[Function, Callable[..., Any]]", reductions.FUNCTIONS),
    **cast("dict[Function, Callable[..., Any]]", embedding.FUNCTIONS),
}

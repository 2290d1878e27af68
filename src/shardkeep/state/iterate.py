"""How is a function applied to every tensor of a state dict, with or without a companion?"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

from shardkeep.errors import InvalidError
from shardkeep.sharded.leaves import leaf_kind, local_tensors, with_local_tensors
from shardkeep.state.companion import fitting_parts, pair_leaves
from shardkeep.state.paths import Path
from shardkeep.state.tree import leaves, map_tree
from shardkeep.state.values import check_value, copied_value

LeafFunction: TypeAlias = Callable[
    [Any, "dist.ProcessGroup | None", "torch.device | None", Any], Any
]

_CPU = torch.device("cpu")


def iterate_state_dict(
    iter_object: Any,
    sharded_tensor_func: LeafFunction,
    dtensor_func: LeafFunction,
    tensor_func: LeafFunction,
    *,
    pg: dist.ProcessGroup | None = None,
    device: torch.device | None = None,
    cpu_offload: bool = False,
    companion_obj: Any = None,
    ranks_only: Collection[int] = (),
    type_check: bool = True,
    non_blocking: bool = True,
) -> Any:
    """A tree with the same containers, in which each tensor is what its function made of it.

    The function for the leaf's kind is called as `fn(leaf, pg, device, companion_leaf)`, in the
    tree's order, on all ranks alike. Other leaves: plain values are kept as they are; anything
    else is refused, or deep-copied with `type_check=False`.

    With `companion_obj`, tensor results are copied into the companion's memory and the
    companion's leaves are returned; `cpu_offload` is then ignored. Structure and values are
    checked before the first function is called; a result that does not fit (kind, shape, dtype,
    layout) raises CompanionMismatch when its turn comes. With `non_blocking`, copies to or from
    an accelerator may still be under way at return: synchronize before using them.

    `ranks_only` names the group ranks that receive the tree; the others run the functions too,
    but copy nothing and get `{}` for a mapping, else None.
    """
    keeps = receives_result(ranks_only, pg)
    if type_check:
        check_values(iter_object)
    companion_at = {} if companion_obj is None else pair_leaves(iter_object, companion_obj)
    functions = {"sharded": sharded_tensor_func, "dtensor": dtensor_func, "tensor": tensor_func}

    def visit(path: Path, leaf: Any) -> Any:
        kind = leaf_kind(leaf)
        if kind is None:
            return leaf if type_check else copied_value(path, leaf)
        twin = companion_at.get(path)
        result = functions[kind](leaf, pg, device, twin)
        return finish(path, result, twin) if keeps else None

    finish = _Finish(cpu_offload, non_blocking)
    tree = map_tree(visit, iter_object)
    return tree if keeps else empty_result(iter_object)


@dataclass(frozen=True, slots=True)
class _Finish:
    """What happens to a function's result: into the companion, to the CPU, or nothing."""

    cpu_offload: bool
    non_blocking: bool

    def __call__(self, path: Path, result: Any, twin: Any) -> Any:
        if not isinstance(result, torch.Tensor):
            return result
        if twin is not None:
            for part, target in fitting_parts(path, result, twin):
                target.copy_(part, non_blocking=self.non_blocking)
            return twin
        return on_cpu(result) if self.cpu_offload else result


def on_cpu(leaf: torch.Tensor) -> torch.Tensor:
    """The leaf with its local memory on the CPU; `leaf` itself if it is there already."""
    parts = local_tensors(leaf)
    if parts and all(part.device == _CPU for part in parts):
        return leaf
    return with_local_tensors(leaf, [part.to(_CPU) for part in parts], device=_CPU)


def check_values(tree: Any) -> None:
    """Raise InvalidError, by path, for a leaf that is neither a tensor nor a plain value."""
    for path, leaf in leaves(tree):
        if not isinstance(leaf, torch.Tensor):
            check_value(path, leaf)


def receives_result(ranks_only: Collection[int], pg: dist.ProcessGroup | None) -> bool:
    """Whether this rank is among the group ranks `ranks_only`, or all ranks are meant."""
    if not ranks_only:
        return True
    if not (dist.is_available() and dist.is_initialized()):
        raise InvalidError("ranks_only needs torch.distributed: call init_process_group first")
    me, size = dist.get_rank(pg), dist.get_world_size(pg)
    absent = [rank for rank in ranks_only if me >= 0 and not 0 <= rank < size]
    if absent:
        raise InvalidError(f"ranks_only names {absent}, but the group's ranks are 0 to {size - 1}")
    return me in ranks_only


def empty_result(tree: Any) -> Any:
    """What a rank gets that is not to receive the tree."""
    return {} if isinstance(tree, Mapping) else None

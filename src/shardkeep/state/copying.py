"""How does a state dict get into other memory: to the CPU, into a mirror, into another one?"""

from collections.abc import Collection
from typing import Any

import torch

from shardkeep.state.buffers import HostMemory
from shardkeep.state.companion import fitting_parts, pair_leaves
from shardkeep.state.iterate import check_values, empty_result, on_cpu, receives_result
from shardkeep.state.mirror import mirror_tree
from shardkeep.state.paths import Path
from shardkeep.state.tree import leaves, map_tree
from shardkeep.state.values import copied_value


@torch.no_grad()
def offload_state_dict_to_cpu(
    state_dict: Any,
    *,
    ranks_only: Collection[int] = (),
    type_check: bool = True,
    copy: bool = True,
) -> Any:
    """The state dict with every tensor on the CPU: in fresh memory, unless `copy=False`.

    With `copy=False`, a leaf that is on the CPU already is returned itself, so that a later
    change shows in both. With `copy=True`, tensors that shared memory share the copy.
    `ranks_only` names the ranks that receive the result; the others get `{}`.
    """
    receives = receives_result(ranks_only, None)
    if type_check:
        check_values(state_dict)
    if not receives:
        return empty_result(state_dict)
    if not copy:
        return map_tree(_aliased, state_dict)
    return mirror_tree(state_dict, HostMemory().allocate, copied_value, fill=True)


def _aliased(path: Path, leaf: Any) -> Any:
    return on_cpu(leaf) if isinstance(leaf, torch.Tensor) else copied_value(path, leaf)


@torch.no_grad()
def create_cpu_state_dict(
    state_dict: Any, pin_memory: bool = False, share_memory: bool = False
) -> Any:
    """A mirror of the state dict on the CPU, whose tensors are not initialised.

    Shapes, dtypes, strides, layouts and shared storages are those of `state_dict`; gradients are
    not required. Other leaves are deep-copied. `pin_memory` needs an accelerator, and together
    with `share_memory` CUDA; page-locking shared memory is slow, so keep such a mirror.
    """
    memory = HostMemory(pin_memory, share_memory)
    memory.check()
    return mirror_tree(state_dict, memory.allocate, copied_value, fill=False)


@torch.no_grad()
def copy_state_dict(
    state_dict: Any,
    copy_state_dict: Any,
    non_blocking: bool = False,
    type_check: bool = True,
) -> Any:
    """A tree like `state_dict` that refers to the tensors of `copy_state_dict`, now filled.

    The two must fit everywhere, which is checked before anything is copied. Leaves that are no
    tensors come from `state_dict`. With `non_blocking`, copies to or from an accelerator may
    still be under way: synchronize before reading the copy or changing the source.
    """
    if type_check:
        check_values(state_dict)
    twin_at = pair_leaves(state_dict, copy_state_dict)
    pairs = [
        pair
        for path, leaf in leaves(state_dict)
        if isinstance(leaf, torch.Tensor)
        for pair in fitting_parts(path, leaf, twin_at[path])
    ]
    for part, target in pairs:
        target.copy_(part, non_blocking=non_blocking)

    def visit(path: Path, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return twin_at[path]
        return leaf if type_check else copied_value(path, leaf)

    return map_tree(visit, state_dict)

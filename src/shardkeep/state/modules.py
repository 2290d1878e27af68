"""How is a module kept, whatever it is wrapped in?

By the names that its parameters have without wrappers: one that was saved under
DistributedDataParallel, torch.compile or activation checkpointing loads without them, and back.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn

from shardkeep.errors import ConflictError
from shardkeep.sharded.leaves import is_on_meta, leaf_kind
from shardkeep.state.like_stored import like_stored
from shardkeep.state.live import Stored
from shardkeep.state.paths import Path

# What a wrapper calls the module in it.
_WRAPPED = {
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "OptimizedModule": "_orig_mod",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
    "OffloadWrapper": "_checkpoint_wrapped_module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
}


def plain_name(module: nn.Module, name: str) -> str:
    """The name of a parameter, buffer or extra state without the wrappers on its way.

    >>> plain_name(nn.DataParallel(nn.Linear(2, 2)), "module.weight")
    'weight'
    """
    found: list[str] = []
    here: nn.Module | None = module
    for part in name.split("."):
        wrapped = _wrapped(here)
        while wrapped is not None and part != wrapped[0]:
            # Some wrappers hide themselves in their state dicts.
            here = wrapped[1]
            wrapped = _wrapped(here)
        if wrapped is None:
            found.append(part)
        here = _children(here).get(part) if here is not None else None
    return ".".join(found)


def _wrapped(module: nn.Module | None) -> tuple[str, nn.Module] | None:
    """The name and the module that a wrapper wraps; None if this is no wrapper."""
    # Base classes as well: FSDP2 makes a class of its own of each that it is applied to.
    kinds = (_WRAPPED.get(kind.__name__) for kind in type(module).__mro__)
    name = next((name for name in kinds if name is not None), None)
    inner = _children(module).get(name) if module is not None and name is not None else None
    return (name, inner) if name is not None and inner is not None else None


def _children(module: nn.Module) -> Mapping[str, nn.Module | None]:
    # Not named_children(), which leaves out what is there twice.
    return cast("Any", module)._modules


def parameter_names(module: nn.Module) -> dict[nn.Parameter, list[str]]:
    """All names of each parameter, without wrappers; a tied one has several."""
    found: dict[nn.Parameter, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        found.setdefault(parameter, []).append(plain_name(module, name))
    return found


@dataclass(frozen=True, slots=True)
class LiveModule:
    """A module: its parameters, persistent buffers and extra state."""

    module: nn.Module
    is_divisible: bool = True

    def kept(self) -> dict[str, Any]:
        state = self.module.state_dict()
        return {plain: state[name] for plain, name in self._names(state).items()}

    def wanted(self, stored: Stored) -> dict[str, Any]:
        """Aliases of the module's own memory, and extra state as the checkpoint has it."""
        return {
            plain: like_stored(at, value)
            if _is_extra(plain, value) and (at := stored.at(plain)).node is not None
            else value
            for plain, value in self.kept().items()
        }

    def give(self, state: Any, loaded: Set[Path]) -> None:
        """Tensors were filled where they are; what had no memory, and extra state, is new."""
        full = self.module.state_dict()
        names = {path[0] for path in loaded}
        for plain, name in self._names(full).items():
            old = full[name]
            if plain in names and (_is_extra(plain, old) or is_on_meta(old)):
                full[name] = state[plain]
            else:
                del full[name]
        if full:
            with _same_parameters():
                self.module.load_state_dict(full, strict=False, assign=True)

    def _names(self, state: Mapping[str, Any]) -> dict[str, str]:
        """The names of a state dict by those without wrappers."""
        found: dict[str, str] = {}
        for name in state:
            plain = plain_name(self.module, name)
            if plain in found:
                raise ConflictError(
                    f"{found[plain]!r} and {name!r} are both called {plain!r} without the "
                    "wrappers: rename one of the modules"
                )
            found[plain] = name
        return found


def _is_extra(plain: str, value: Any) -> bool:
    """Whether it is what a module makes for its state dict, rather than a parameter or buffer."""
    return plain.split(".")[-1] == "_extra_state" or leaf_kind(value) is None


@contextmanager
def _same_parameters() -> Generator[None]:
    """Parameters that get memory stay the objects that they are: optimizers hold on to them."""
    future: Any = torch.__future__
    before: bool = future.get_swap_module_params_on_conversion()
    future.set_swap_module_params_on_conversion(True)
    try:
        yield
    finally:
        future.set_swap_module_params_on_conversion(before)

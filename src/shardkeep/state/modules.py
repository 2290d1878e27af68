"""How is a module kept, whatever it is wrapped in?

By the names that its parameters have without wrappers: one that was saved under
DistributedDataParallel, torch.compile or activation checkpointing loads without them, and back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from shardkeep.errors import ConflictError
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
        here = here._modules.get(part) if here is not None else None
    return ".".join(found)


def _wrapped(module: nn.Module | None) -> tuple[str, nn.Module] | None:
    """The name and the module that a wrapper wraps; None if this is no wrapper."""
    name = _WRAPPED.get(type(module).__name__)
    inner = module._modules.get(name) if module is not None and name is not None else None
    return (name, inner) if name is not None and inner is not None else None


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
        return {plain: value for plain, (_, value) in self._state().items()}

    def wanted(self, stored: Stored) -> dict[str, Any]:
        # Aliases of the module's own memory, which the load fills.
        return self.kept()

    def give(self, state: Any, news: Mapping[Path, Any]) -> None:
        """Parameters and buffers were filled where they are; only what had no memory is new."""
        if not news:
            return
        names = {plain: name for plain, (name, _) in self._state().items()}
        full = {name: state[plain] for plain, name in names.items()}
        assign = any(isinstance(new, torch.Tensor) for new in news.values())
        with _same_parameters():
            self.module.load_state_dict(full, assign=assign)

    def _state(self) -> dict[str, tuple[str, Any]]:
        """By name without wrappers: the name with them, and the value."""
        found: dict[str, tuple[str, Any]] = {}
        for name, value in self.module.state_dict().items():
            plain = plain_name(self.module, name)
            if plain in found:
                raise ConflictError(
                    f"{found[plain][0]!r} and {name!r} are both called {plain!r} without the "
                    "wrappers: rename one of the modules"
                )
            found[plain] = name, value
        return found


@contextmanager
def _same_parameters() -> Iterator[None]:
    """Parameters that get memory stay the objects that they are: optimizers hold on to them."""
    future: Any = torch.__future__
    before: bool = future.get_swap_module_params_on_conversion()
    future.set_swap_module_params_on_conversion(True)
    try:
        yield
    finally:
        future.set_swap_module_params_on_conversion(before)

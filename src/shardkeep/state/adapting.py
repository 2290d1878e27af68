"""Which adapter serves which live object of a tree?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn

from shardkeep.errors import ConflictError, InvalidError
from shardkeep.state.like_stored import like_stored
from shardkeep.state.live import Live, Stateful, Stored, is_adapter, is_live
from shardkeep.state.modules import LiveModule, parameter_names
from shardkeep.state.optimizers import LiveOptimizer
from shardkeep.state.paths import Path, dotted, path_text
from shardkeep.state.tree import COMMON_LEAVES, leaves, map_tree


@dataclass(frozen=True, slots=True)
class Parts:
    """Several modules, or several optimizers, that are kept as one."""

    members: tuple[Any, ...]

    def state_dict(self) -> Any:
        """For whoever asks without a tree around it."""
        return expand(self)


def parts(*members: Any) -> Parts:
    """Modules (or optimizers) of which this rank has several, kept as if they were one.

    A rank that runs several pipeline stages keeps them with it: names of parameters must not
    repeat, and which rank had which stage does not matter to a later load.
    """
    if not members or not all(is_live(member) for member in members):
        raise InvalidError("parts() takes modules, optimizers or other objects with a state dict")
    return Parts(members)


def adapters(tree: Any) -> dict[Path, Live]:
    """An adapter for each live object of the tree, by its place."""
    return adapters_of(leaves(tree))


def adapters_of(found: Sequence[tuple[Path, Any]]) -> dict[Path, Live]:
    """As `adapters`, of a tree that has these leaves."""
    live = {
        path: leaf
        for path, leaf in found
        if type(leaf) not in COMMON_LEAVES
        and not isinstance(leaf, torch.Tensor)
        and (isinstance(leaf, Parts) or is_live(leaf))
    }
    names = _names(live)
    return {path: _adapter(leaf, path, names) for path, leaf in live.items()}


def expand(tree: Any) -> Any:
    """The tree with live objects replaced by what is kept of them."""
    found = adapters(tree)
    return expanded(tree, found) if found else tree


def expanded(tree: Any, found: Mapping[Path, Live]) -> Any:
    """The tree with these live objects replaced by what is kept of them."""
    return map_tree(lambda path, leaf: found[path].kept() if path in found else leaf, tree)


@dataclass(frozen=True, slots=True)
class _Named:
    """A module of the tree, and the names of its parameters."""

    path: Path
    names: Mapping[nn.Parameter, Sequence[str]]


def _names(live: Mapping[Path, Any]) -> list[_Named]:
    found: list[_Named] = []
    for path, leaf in live.items():
        names: dict[nn.Parameter, Sequence[str]] = {}
        for member in leaf.members if isinstance(leaf, Parts) else (leaf,):
            if isinstance(member, nn.Module):
                names.update(parameter_names(member))
        if names:
            found.append(_Named(path, names))
    return found


def _adapter(leaf: Any, path: Path, names: Sequence[_Named]) -> Live:
    if isinstance(leaf, Parts):
        return _LiveParts(tuple(_adapter(member, path, names) for member in leaf.members), path)
    if is_adapter(leaf):
        return leaf
    if isinstance(leaf, nn.Module):
        return LiveModule(leaf)
    if isinstance(leaf, torch.optim.Optimizer):
        return LiveOptimizer(leaf, _names_for(leaf, names))
    return _LiveStateful(leaf)


def _names_for(
    optimizer: torch.optim.Optimizer, modules: Sequence[_Named]
) -> Mapping[nn.Parameter, Sequence[str]]:
    """Names within the module that has all of the optimizer's parameters; else with its place."""
    wanted = [p for group in optimizer.param_groups for p in group["params"]]
    for module in modules:
        if all(parameter in module.names for parameter in wanted):
            return module.names
    return {
        parameter: [f"{dotted(module.path)}.{name}" for name in names]
        for module in reversed(modules)
        for parameter, names in module.names.items()
    }


@dataclass(frozen=True, slots=True)
class _LiveStateful:
    """Anything else with a state dict: its own `load_state_dict` judges what was stored."""

    stateful: Stateful
    is_divisible: bool = False

    def kept(self) -> Any:
        return expand(self.stateful.state_dict())

    def wanted(self, stored: Stored) -> Any:
        return like_stored(stored, self.kept())

    def give(self, state: Any, loaded: Set[Path]) -> None:
        self.stateful.load_state_dict(state)


class _LiveParts:
    def __init__(self, members: Sequence[Live], path: Path) -> None:
        self.members = members
        self.path = path
        self._wanted: list[Any] = []

    @property
    def is_divisible(self) -> bool:
        return all(member.is_divisible for member in self.members)

    def kept(self) -> Any:
        return _united([member.kept() for member in self.members], self.path)

    def wanted(self, stored: Stored) -> Any:
        self._wanted = [member.wanted(stored) for member in self.members]
        return _united(self._wanted, self.path)

    def give(self, state: Any, loaded: Set[Path]) -> None:
        for member, wanted in zip(self.members, self._wanted, strict=True):
            own = {path for path, _ in leaves(wanted)}
            member.give(_part(state, wanted), own & loaded)


def _part(state: Any, wanted: Any) -> Any:
    """What of a united state one of the parts wanted."""
    if isinstance(wanted, dict):
        tree = cast("dict[Any, Any]", wanted)
        return {key: _part(state[key], below) for key, below in tree.items()}
    return state


def _united(trees: Sequence[Any], path: Path) -> Any:
    """Dicts as one; what several have must be the same thing."""
    first = trees[0]
    if all(tree is first for tree in trees):
        return first
    if all(isinstance(tree, dict) for tree in trees):
        keys = dict.fromkeys(key for tree in trees for key in tree)
        return {
            key: _united([tree[key] for tree in trees if key in tree], (*path, key)) for key in keys
        }
    if any(isinstance(tree, torch.Tensor) for tree in trees) or any(t != first for t in trees):
        raise ConflictError(f"{path_text(path)} is in several of the parts; names must not repeat")
    return first

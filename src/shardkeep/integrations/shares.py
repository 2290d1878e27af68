"""What of a training state does each rank keep, where ranks hold copies that may differ?

Parameters and optimizer states are copies that must be equal: all ranks keep them, and a save
compares them. Buffers are not: under data parallelism each rank has running means of its own
batches. There the first rank's count, as they do when the job goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from shardkeep.ranks import RankGroup
from shardkeep.sharded.leaves import leaf_kind
from shardkeep.state.live import Stored
from shardkeep.state.modules import LiveModule, parameter_names
from shardkeep.state.optimizers import LiveOptimizer
from shardkeep.state.paths import Path


def is_first_rank() -> bool:
    """Whether this rank speaks for the others; a process without a group does."""
    return RankGroup.of().me == 0


def share_of(module: nn.Module, kept: Mapping[str, Any]) -> dict[str, Any]:
    """Of what is kept of a module, this rank's share."""
    if is_first_rank():
        return dict(kept)
    names = {name for several in parameter_names(module).values() for name in several}
    return {
        name: value
        for name, value in kept.items()
        if name in names or leaf_kind(value) in ("dtensor", "sharded")
    }


@dataclass(frozen=True, slots=True)
class SharedModule:
    """A module of which each rank keeps its share, and is given back the whole."""

    module: nn.Module
    is_divisible: bool = True

    def kept(self) -> dict[str, Any]:
        return share_of(self.module, LiveModule(self.module).kept())

    def wanted(self, stored: Stored) -> dict[str, Any]:
        return LiveModule(self.module).wanted(stored)

    def give(self, state: Any, loaded: Set[Path]) -> None:
        LiveModule(self.module).give(state, loaded)


def named(optimizer: torch.optim.Optimizer, models: Sequence[nn.Module]) -> LiveOptimizer:
    """An optimizer, kept by the names that its parameters have in their model.

    Where no model has them all, the model's number stands before the name.
    """
    wanted = {one for group in optimizer.param_groups for one in group["params"]}
    names = [parameter_names(model) for model in models]
    for of_model in names:
        if wanted <= of_model.keys():
            return LiveOptimizer(optimizer, of_model)
    numbered = {
        parameter: [f"{number}.{name}" for name in several]
        for number, of_model in enumerate(names)
        for parameter, several in of_model.items()
    }
    return LiveOptimizer(optimizer, numbered)


class Held:
    """A tree of values and tensors that a load replaces by what was saved, whatever its shape."""

    def __init__(self) -> None:
        self.tree: Any = None

    def state_dict(self) -> Any:
        return self.tree

    def load_state_dict(self, tree: Any) -> None:
        self.tree = tree

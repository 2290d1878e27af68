"""What of a training state does each rank keep, where ranks hold copies that may differ?

Parameters and optimizer states are copies that must be equal: all ranks keep them, and a save
compares them. Buffers are not: under data parallelism each rank has running means of its own
batches. There the first rank's count, as they do when the job goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from shardkeep.ranks import RankGroup
from shardkeep.sharded.leaves import leaf_kind
from shardkeep.state.modules import parameter_names


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


class Held:
    """A tree of values and tensors that a load replaces by what was saved, whatever its shape."""

    def __init__(self, tree: Any = None) -> None:
        self.tree = tree

    def state_dict(self) -> Any:
        return self.tree

    def load_state_dict(self, tree: Any) -> None:
        self.tree = tree

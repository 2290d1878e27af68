"""How does a Lightning Trainer keep its checkpoints with shardkeep?

By its strategy: one argument of the Trainer changes. Every rank writes its share; what
`trainer.fit(ckpt_path=...)` resumes from may have been saved by another strategy of this module,
on any number of ranks. Lightning's own part of a checkpoint (loops, callbacks, schedulers,
hyperparameters) is the first rank's, as it is in Lightning.
"""

# Lightning leaves much of what its strategies hold untyped.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

try:
    from lightning.pytorch import LightningModule
    from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy
    from lightning.pytorch.trainer.states import TrainerFn
except ImportError as error:
    raise ImportError(
        "shardkeep.integrations.lightning needs Lightning: pip install 'shardkeep[lightning]'"
    ) from error

from shardkeep.checkpoint import TIMEOUT, load, open as open_checkpoint, save
from shardkeep.errors import InvalidError
from shardkeep.integrations.shares import Held, is_first_rank, share_of
from shardkeep.manifest import DictNode
from shardkeep.state.modules import LiveModule, parameter_names
from shardkeep.state.optimizers import LiveOptimizer
from shardkeep.state.rng import rng_state
from shardkeep.storage.shelf import LocalShelf
from shardkeep.transfer.groups import told

_Base = Strategy if TYPE_CHECKING else object
_Path = str | os.PathLike[str]


class ShardkeepMixin(_Base):
    """Put before a Lightning strategy, it saves and loads through shardkeep, on all ranks.

    A checkpoint is a folder with `model`, `optimizers`, the random states `rng` of each rank, and
    `lightning`, which is the rest. An existing one is replaced, all at once.
    """

    @property
    def restore_checkpoint_after_setup(self) -> bool:
        # Shards and optimizers must be there: they are filled where they are.
        return True

    @property
    def lightning_restore_optimizer(self) -> bool:
        return False

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """This rank's parameters and buffers by name, without a copy."""
        return LiveModule(self._module).kept()

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """What is kept of an optimizer, by the names of its parameters."""
        plain: torch.optim.Optimizer = getattr(optimizer, "optimizer", optimizer)
        return LiveOptimizer(plain, parameter_names(self._module)).kept()

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: _Path, storage_options: Any = None
    ) -> None:
        """Save what the Trainer has put together; SPMD."""
        if storage_options is not None:
            raise InvalidError(f"storage_options={storage_options!r} are not used: leave them out")
        save(self._tree(checkpoint), os.fspath(self.broadcast(filepath)), overwrite=True)

    def load_checkpoint(
        self, checkpoint_path: _Path, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Fill model and optimizers where they are, and return Lightning's own part; SPMD."""
        path = os.fspath(self.broadcast(checkpoint_path))
        with told(None, act="load", timeout=TIMEOUT):
            stored = _require_lightning(path)
        rest = Held()
        into: dict[str, Any] = {"model": self._module, "lightning": rest}
        if self._module.trainer.state.fn == TrainerFn.FITTING:
            into |= {"optimizers": self.optimizers, "rng": rng_state()}
        into = {name: part for name, part in into.items() if name in stored}
        keys = [pattern for name in into for pattern in (name, f"{name}.*")]
        load(path, into, keys=keys, strict=self._module.strict_loading)
        return rest.tree

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Nothing is left to do: `load_checkpoint` has filled the model."""

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Nothing is left to do: `load_checkpoint` has filled the optimizers."""

    def remove_checkpoint(self, filepath: _Path) -> None:
        """Take a checkpoint away, all at once."""
        path = Path(filepath)
        if path.is_symlink() or not path.is_dir():
            super().remove_checkpoint(path)
        elif self.is_global_zero:
            LocalShelf(path.parent).remove(path.name)

    @property
    def _module(self) -> LightningModule:
        module = self.lightning_module
        if module is None:
            raise InvalidError("the strategy has no module yet: save and load by its Trainer")
        return module

    def _tree(self, checkpoint: dict[str, Any]) -> dict[str, Any]:
        """What this rank saves of the Trainer's checkpoint."""
        rest = dict(checkpoint)
        tree: dict[str, Any] = {"model": share_of(self._module, rest.pop("state_dict"))}
        if "optimizer_states" in rest:
            tree["optimizers"] = rest.pop("optimizer_states")
        if is_first_rank():
            tree["lightning"] = rest
        return tree | {"rng": rng_state()}


class ShardkeepDDPStrategy(ShardkeepMixin, DDPStrategy):
    """Data parallelism whose checkpoints are written by all ranks: `Trainer(strategy=...)`."""


class ShardkeepModelParallelStrategy(ShardkeepMixin, ModelParallelStrategy):
    """`fully_shard` and tensor parallelism: each rank saves and loads the shards that it holds."""


def _require_lightning(path: str) -> set[str]:
    """The parts of a checkpoint, which must be one of these strategies."""
    with open_checkpoint(path) as checkpoint:
        tree = checkpoint.manifest.tree
    names = {str(name) for name, _ in tree.items} if isinstance(tree, DictNode) else set[str]()
    if not {"model", "lightning"} <= names:
        raise InvalidError(
            f"{path} was not saved by a Lightning Trainer with shardkeep's strategy: it has no "
            "'lightning'; use shardkeep.load(path, into=...) to take weights from it"
        )
    return names

"""How does an Accelerator keep the state of its training with shardkeep?

As `accelerator.save_state` and `load_state` do, and with the same things: what was prepared or
registered, the gradient scaler, the step, random states. All ranks write, nothing is pickled, and
any number of ranks loads it.
"""

# Accelerate is not typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportPrivateUsage=false, reportMissingTypeStubs=false

from __future__ import annotations

import os
from typing import Any

from torch import nn

try:
    from accelerate import Accelerator, DistributedType
except ImportError as error:
    raise ImportError(
        "shardkeep.integrations.accelerate needs Accelerate: pip install 'shardkeep[accelerate]'"
    ) from error

from shardkeep.checkpoint import load, save
from shardkeep.errors import UnsupportedError
from shardkeep.integrations.shares import SharedModule, named
from shardkeep.ranks import RankGroup
from shardkeep.state.rng import rng_state
from shardkeep.transfer.restore import LoadReport
from shardkeep.transfer.saving import SaveResult


def save_state(
    accelerator: Accelerator, path: str | os.PathLike[str], **options: Any
) -> SaveResult:
    """Save all that the Accelerator knows as a checkpoint; SPMD. `options` are those of `save`."""
    return save(state_of(accelerator), path, **options)


def load_state(
    accelerator: Accelerator, path: str | os.PathLike[str], **options: Any
) -> LoadReport:
    """Fill all that the Accelerator knows from a checkpoint; SPMD. `options` are those of `load`.

    Prepare and register the same objects first, in the same order.
    """
    return load(path, state_of(accelerator), **options)


def state_of(accelerator: Accelerator) -> dict[str, Any]:
    """What `save_state` saves, as a tree for `save`, `load` or a `Checkpointer`.

    It stands for the objects as they are at the time of the save.
    """
    require_supported(accelerator)
    models: list[nn.Module] = accelerator._models
    state: dict[str, Any] = {
        "models": [SharedModule(model) for model in models],
        "optimizers": [named(one.optimizer, models) for one in accelerator._optimizers],
        "schedulers": list(accelerator._schedulers),
        "loaders": [_loader(loader) for loader in accelerator._dataloaders],
        "registered": list(accelerator._custom_objects),
        "progress": _Attribute(accelerator, "step"),
        "rng": rng_state(),
    }
    return state if accelerator.scaler is None else state | {"scaler": accelerator.scaler}


def require_supported(accelerator: Accelerator) -> None:
    """Raise where the shards of a training are not the ones that its modules show."""
    kind = accelerator.distributed_type
    if kind == DistributedType.FSDP and not accelerator.is_fsdp2:
        raise UnsupportedError(
            "the first FSDP does not show its shards: use FullyShardedDataParallelPlugin("
            "fsdp_version=2)"
        )
    if kind in (DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM, DistributedType.XLA):
        raise UnsupportedError(f"{kind.value} keeps states of its own: use accelerator.save_state")
    if accelerator._save_model_state_pre_hook or accelerator._load_model_state_pre_hook:
        raise UnsupportedError(
            "hooks of register_save_state_pre_hook write files of their own and would not be run: "
            "remove them, and register what they keep with register_for_checkpointing"
        )


class _Attribute:
    """An attribute of an object, as something with a state."""

    def __init__(self, owner: Any, name: str) -> None:
        self._owner = owner
        self._name = name

    def state_dict(self) -> dict[str, Any]:
        return {self._name: getattr(self._owner, self._name)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        setattr(self._owner, self._name, state[self._name])


def _loader(loader: Any) -> dict[str, Any]:
    """Which epoch a data loader is in, the seed of its order, and where it is if it can tell."""
    found: dict[str, Any] = {"epoch": _Attribute(loader, "iteration")}
    sampler = loader.get_sampler()
    if hasattr(sampler, "initial_seed"):
        found["order"] = _Attribute(sampler, "initial_seed")
    if getattr(loader, "use_stateful_dataloader", False):
        # Each rank has a position of its own.
        found["position"] = {f"rank{RankGroup.of().me}": loader}
    return found

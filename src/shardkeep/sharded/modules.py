"""How are a module's parameters sharded, and how do sharded attributes enter its state dict?"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import nn

from shardkeep.errors import InvalidError, RankFailedError
from shardkeep.ranks import RankGroup, agree_equal
from shardkeep.sharded.scatter import shard_tensor
from shardkeep.sharded.sharded_tensor import ShardedTensor
from shardkeep.sharded.specs import ChunkShardingSpec, ShardingSpec


def shard_parameter(
    module: nn.Module,
    param_name: str,
    sharding_spec: ShardingSpec,
    src_rank: int = 0,
    process_group: object = None,
) -> None:
    """Replace a parameter of `module` by one that is sharded from rank `src_rank`. SPMD."""
    _agree_on(process_group, "shard_parameter", lambda: list(_parameter(module, param_name).shape))
    parameter = _parameter(module, param_name)
    sharded = shard_tensor(parameter, sharding_spec, src_rank, process_group)
    setattr(module, param_name, nn.Parameter(sharded, requires_grad=parameter.requires_grad))


def _parameter(module: nn.Module, name: str) -> torch.Tensor:
    parameter = getattr(module, name, None)
    if parameter is None:
        raise AttributeError(f"{type(module).__name__} has no attribute {name!r}")
    if not isinstance(parameter, torch.Tensor):
        raise InvalidError(f"{name!r} is a {type(parameter).__name__}; only tensors can be sharded")
    return parameter


def _agree_on(process_group: object, phase: str, check: Callable[[], object]) -> None:
    """Run `check` on every rank before one of them starts; if it raises on one, all raise."""
    try:
        agree_equal(RankGroup.of(process_group), phase, check)
    except RankFailedError as error:
        own = error.__cause__
        if isinstance(own, AttributeError | KeyError | TypeError):
            raise type(own)(str(error)) from error
        raise


class Sharder(ABC):
    """Shards a whole submodule in its own way."""

    @abstractmethod
    def shard(self, module: nn.Module) -> nn.Module:
        """The sharded module that takes the place of `module`."""


@dataclass
class ShardingPlan:
    """What to do with which part of a model, by dotted path."""

    plan: dict[str, ShardingSpec | Sharder]
    """Parameters with their spec, submodules with their sharder."""
    output_plan: dict[str, ShardingSpec] | None = None
    """Modules whose sharded output is resharded by a spec."""
    return_local_tensor: list[str] | None = field(default=None)
    """Modules whose sharded output is handed on as the local tensor."""


class ShardingPlanner(ABC):
    """Makes a plan for a model."""

    @abstractmethod
    def build_plan(self, module: nn.Module) -> ShardingPlan:
        """The plan for `module`."""


def shard_module(
    module: nn.Module, plan: ShardingPlan, src_rank: int = 0, process_group: object = None
) -> None:
    """Shard the parameters and submodules that `plan` names. SPMD."""
    _agree_on(process_group, "shard_module", lambda: _check_plan(module, plan))
    for path, entry in plan.plan.items():
        parent, _, name = path.rpartition(".")
        owner = module.get_submodule(parent)
        if isinstance(entry, Sharder):
            setattr(owner, name, entry.shard(module.get_submodule(path)))
        else:
            shard_parameter(owner, name, entry, src_rank, process_group)
    for path, spec in (plan.output_plan or {}).items():
        module.get_submodule(path).register_forward_hook(_Resharded(spec))
    for path in plan.return_local_tensor or ():
        module.get_submodule(path).register_forward_hook(_local_output)


def _check_plan(module: nn.Module, plan: ShardingPlan) -> list[str]:
    """Refuse the whole plan before the first parameter changes; the paths in their order."""
    for path, entry in plan.plan.items():
        if not isinstance(entry, ShardingSpec | Sharder):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                f"the plan for {path!r} is a ShardingSpec or a Sharder, got {type(entry).__name__}"
            )
        if isinstance(entry, Sharder):
            if not path:
                raise KeyError("a sharder's path must not be empty: the root cannot be replaced")
            module.get_submodule(path)
        else:
            parent, _, name = path.rpartition(".")
            _parameter(module.get_submodule(parent), name)
        for sharder_path in _sharder_paths(plan, path):
            raise RuntimeError(
                f"{path!r} is planned by itself, but also lies in {sharder_path!r}, "
                "which a sharder takes care of; remove one of the two"
            )
    for path, spec in (plan.output_plan or {}).items():
        if not isinstance(spec, ShardingSpec):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"the output plan for {path!r} is a ShardingSpec, got {spec!r}")
    for path in (*(plan.output_plan or ()), *(plan.return_local_tensor or ())):
        module.get_submodule(path)
    return list(plan.plan)


def _sharder_paths(plan: ShardingPlan, path: str) -> Iterator[str]:
    """Sharded modules that `path` lies in: emb1 does not hold emb10.weight."""
    for other, entry in plan.plan.items():
        if isinstance(entry, Sharder) and path.startswith(f"{other}."):
            yield other


@dataclass(frozen=True)
class _Resharded:
    spec: ShardingSpec

    def __call__(self, module: nn.Module, inputs: object, output: object) -> object:
        return output.reshard(self.spec) if isinstance(output, ShardedTensor) else output


def _local_output(module: nn.Module, inputs: object, output: object) -> object:
    if not isinstance(output, ShardedTensor):
        return output
    local, spec = output.local_tensor(), output.sharding_spec()
    if isinstance(spec, ChunkShardingSpec) and local.size(spec.dim) == 1:
        return local.squeeze(spec.dim)
    return local


def state_dict_hook(
    module: nn.Module,
    destination: MutableMapping[str, object],
    prefix: str,
    local_metadata: Mapping[str, object],
) -> None:
    """Adds sharded tensors that are plain attributes to a module's state dict.

    Register it with `module.register_state_dict_post_hook`.
    """
    for key, owner, name in _attributes(module, prefix):
        value = vars(owner)[name]
        if isinstance(value, ShardedTensor):
            destination[key] = value


def pre_load_state_dict_hook(
    module: nn.Module,
    state_dict: MutableMapping[str, object],
    prefix: str,
    local_metadata: Mapping[str, object],
    strict: bool,
    missing_keys: Sequence[str],
    unexpected_keys: Sequence[str],
    error_msgs: Sequence[str],
) -> None:
    """Puts sharded tensors of a state dict back into plain attributes, and takes them out of it.

    Register it with `module.register_load_state_dict_pre_hook`.
    """
    for key, owner, name in list(_attributes(module, prefix)):
        if isinstance(state_dict.get(key), ShardedTensor):
            setattr(owner, name, state_dict.pop(key))


def _attributes(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module, str]]:
    for path, owner in cast("Iterable[tuple[str, nn.Module]]", module.named_modules()):
        for name in vars(owner):
            yield prefix + (f"{path}." if path else "") + name, owner, name

"""How is a model with sharded parameters optimised? As any other: elementwise, shard by shard."""

# torch leaves named_modules(), step() and the like untyped.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from shardkeep.errors import InvalidError


class ShardedOptimizer(torch.optim.Optimizer):
    """An optimizer over named parameters, sharded or not; its state is by parameter name.

    Optimizers take sharded parameters directly as well; this one adds the names.
    """

    def __init__(
        self,
        named_params: Mapping[str, torch.Tensor],
        optimizer_class: Callable[..., torch.optim.Optimizer],
        *optimizer_args: Any,
        **optimizer_kwargs: Any,
    ) -> None:
        self.named_params = dict(named_params)
        if not self.named_params:
            raise InvalidError("an optimizer needs at least one parameter")
        self._optim = optimizer_class(
            list(self.named_params.values()), *optimizer_args, **optimizer_kwargs
        )
        self.param_groups = self._optim.param_groups
        self.state = self._optim.state

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of all parameters."""
        self._optim.zero_grad(set_to_none)

    def step(self, closure: Any = None) -> Any:
        """One step of the wrapped optimizer."""
        return self._optim.step(closure)

    def state_dict(self) -> dict[str, Any]:
        """The state of each parameter by its name, and the groups."""
        state = {
            name: dict(self.state[param])
            for name, param in self.named_params.items()
            if param in self.state
        }
        groups = [{k: v for k, v in g.items() if k != "params"} for g in self.param_groups]
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take the state back; names that are not ours are an error."""
        unknown = sorted(set(state_dict["state"]) - set(self.named_params))
        if unknown:
            raise InvalidError(f"the state has parameters that the optimizer lacks: {unknown}")
        for name, state in state_dict["state"].items():
            self.state[self.named_params[name]] = dict(state)
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group.update(saved)


def named_params_with_sharded_tensor(
    module: nn.Module, prefix: str = "", recurse: bool = True
) -> Iterator[tuple[str, torch.Tensor]]:
    """Every parameter of the module, and sharded tensors that are plain attributes, by name."""
    from shardkeep.sharded.sharded_tensor import ShardedTensor

    seen: set[int] = set()
    owners = module.named_modules(prefix=prefix) if recurse else [(prefix, module)]
    for path, owner in owners:
        own = {**vars(owner), **dict(owner.named_parameters(recurse=False))}
        for name, value in own.items():
            is_ours = isinstance(value, nn.Parameter | ShardedTensor)
            if is_ours and id(value) not in seen:
                seen.add(id(value))
                yield (f"{path}." if path else "") + name, value

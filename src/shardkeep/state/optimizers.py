"""How is an optimizer kept, so that it fits another parallelism and other parameter groups?

By the names of its parameters: `state` has what the optimizer knows of each, `params` says which
options hold for it, and `groups` has these options, each set once. Where the checkpoint has state
that the optimizer makes only at its first step, it is made before the load.
"""

# An optimizer's state and options are whatever its author put there.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
import xxhash
from torch import nn

from shardkeep.errors import ConflictError, InvalidError
from shardkeep.manifest import DictNode, Node, TensorNode, TensorRecord
from shardkeep.sharded.leaves import leaf_kind
from shardkeep.state.building import build_state
from shardkeep.state.dtypes import TORCH_DTYPES
from shardkeep.state.like_stored import like_stored
from shardkeep.state.live import Stored
from shardkeep.state.paths import Path

# Which parameters, which is kept by name; and how to compute, not what: a matter of the machine
# that the optimizer runs on.
_OWN_OPTIONS = ("params", "param_names", "foreach", "fused", "capturable", "differentiable")

Names = Mapping[nn.Parameter, Sequence[str]]
"""Every name of each parameter of the modules in the tree."""


@dataclass(frozen=True, slots=True)
class LiveOptimizer:
    """An optimizer whose parameters have names."""

    optimizer: torch.optim.Optimizer
    names: Names
    is_divisible: bool = False

    def kept(self) -> dict[str, Any]:
        raw = self.optimizer.state_dict()
        parameters = self._parameters()
        groups: dict[str, dict[str, Any]] = {}
        params: dict[str, str] = {}
        for group in self.optimizer.param_groups:
            options = _options(group)
            digest = _digest(options)
            groups[digest] = options
            params.update({self._name(parameter): digest for parameter in group["params"]})
        state = {self._name(parameters[index]): known for index, known in raw["state"].items()}
        rest = {key: raw[key] for key in raw if key not in ("state", "param_groups")}
        return {"state": state, "params": params, "groups": groups, **rest}

    def wanted(self, stored: Stored) -> dict[str, Any]:
        self._require_options(stored)
        raw = self.optimizer.state_dict()
        index_of = {parameter: index for index, parameter in enumerate(self._parameters())}
        state: dict[str, Any] = {}
        params: dict[str, Any] = {}
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                name = self._stored_name(parameter, stored)
                params[name] = None
                known = raw["state"].get(index_of[parameter], {})
                found = stored.at("state", name)
                if found.node is not None:
                    state[name] = _state_of(parameter, known, found, group)
                elif known and name not in stored.at("params").items:
                    # Nothing was saved of the parameter: what there is of it stays.
                    state[name] = known
        rest = {
            str(key): like_stored(stored.at(key), raw.get(str(key)))
            for key in stored.items
            if key not in ("state", "params", "groups")
        }
        groups = like_stored(stored.at("groups"), None) or {}
        return {"state": state, "params": params, "groups": groups, **rest}

    def give(self, state: Any, loaded: Set[Path]) -> None:
        by_name = {
            name: parameter
            for parameter in self._parameters()
            for name in self._names_of(parameter)
            if name in state["params"]
        }
        index_of = {parameter: index for index, parameter in enumerate(self._parameters())}
        known = {index_of[by_name[name]]: dict(of) for name, of in state["state"].items()}
        rest = {key: state[key] for key in state if key not in ("state", "params", "groups")}
        self.optimizer.load_state_dict(
            {"state": known, "param_groups": list(self._groups(state, index_of)), **rest}
        )
        # It converts to the parameters' dtype, which would lose what was kept more precisely.
        for name, of in state["state"].items():
            self.optimizer.state[by_name[name]].update(of)

    def _groups(self, state: Any, index_of: Mapping[nn.Parameter, int]) -> Iterator[dict[str, Any]]:
        """The optimizer's own groups with the checkpoint's options."""
        used = set(state["params"].values())
        unused = [options for digest, options in state["groups"].items() if digest not in used]
        empty = 0
        for number, group in enumerate(self.optimizer.param_groups):
            own = {key: value for key, value in group.items() if key != "params"}
            if group["params"]:
                options = self._options_for(group["params"], state, number)
            else:
                # An empty group has no name to go by: the first takes the first, and so on.
                options = unused[min(empty, len(unused) - 1)] if unused else {}
                empty += 1
            news = {key: _like_own(own.get(key), value) for key, value in options.items()}
            yield {**own, **news, "params": [index_of[p] for p in group["params"]]}

    def _require_options(self, stored: Stored) -> None:
        """Raise, before anything is read, if a group holds what was saved with other options."""
        saved = {key: _values(stored.at(key).node) for key in ("params", "groups")}
        for number, group in enumerate(self.optimizer.param_groups):
            self._options_for(group["params"], saved, number)

    def _options_for(
        self, parameters: Sequence[nn.Parameter], state: Any, number: int
    ) -> Mapping[str, Any]:
        """The options that the checkpoint has for all parameters of a group."""
        by_digest: dict[str, str] = {}
        for parameter in parameters:
            for name in self._names_of(parameter):
                digest = state["params"].get(name)
                if digest is not None:
                    by_digest.setdefault(digest, name)
        if len(by_digest) > 1:
            (one, a), (other, b) = list(by_digest.items())[:2]
            left, right = state["groups"][one], state["groups"][other]
            differ = sorted(k for k in {*left, *right} if left.get(k) != right.get(k))
            raise ConflictError(
                f"parameter group {number} holds {a!r} and {b!r}, which were saved with different "
                f"options ({', '.join(f'{k}: {left.get(k)!r}, {right.get(k)!r}' for k in differ)}):"
                " put them into groups of their own"
            )
        return state["groups"][next(iter(by_digest))] if by_digest else {}

    def _parameters(self) -> list[nn.Parameter]:
        """In the order of the numbers that the optimizer's own state dict gives them."""
        return list(
            dict.fromkeys(p for group in self.optimizer.param_groups for p in group["params"])
        )

    def _names_of(self, parameter: nn.Parameter) -> Sequence[str]:
        names = self.names.get(parameter)
        if names is None:
            raise InvalidError(
                f"a {type(self.optimizer).__name__} holds a parameter of shape "
                f"{tuple(parameter.shape)} that no module in the state has, so it has no name: "
                "put the module into the state, too"
            )
        return names

    def _name(self, parameter: nn.Parameter) -> str:
        return self._names_of(parameter)[0]

    def _stored_name(self, parameter: nn.Parameter, stored: Stored) -> str:
        """Of the names of a tied parameter, the one that it was saved under."""
        names = self._names_of(parameter)
        known = stored.at("params").items
        return next((name for name in names if name in known), names[0])


def _values(node: Node | None) -> dict[str, Any]:
    """What is stored in a dict without tensors."""
    return build_state(node, _no_tensor, str) if isinstance(node, DictNode) else {}


def _no_tensor(number: int) -> torch.Tensor:
    raise ConflictError("the options of an optimizer hold a tensor: saved by something else?")


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    """As values: whether a learning rate is a number or a tensor is the optimizer's own matter."""
    return {
        key: value.tolist() if isinstance(value, torch.Tensor) else value
        for key, value in group.items()
        if key not in _OWN_OPTIONS
    }


def _like_own(own: Any, value: Any) -> Any:
    """An option's value in the form that the optimizer has it: a tensor of its own, or as it is."""
    if not isinstance(own, torch.Tensor):
        return value
    return torch.tensor(value, dtype=own.dtype, device=own.device)


def _digest(options: Mapping[str, Any]) -> str:
    """The same on all ranks whose groups have the same options."""
    return xxhash.xxh3_64_hexdigest(repr(sorted(options.items())).encode())


def _state_of(
    parameter: nn.Parameter, known: Mapping[Any, Any], stored: Stored, group: Mapping[str, Any]
) -> Any:
    """What to fill for one parameter: the memory that is there, or some like the parameter's."""
    # As torch's own optimizers do, which count on the CPU unless they are told to stay off it.
    steps_on_device = bool(group.get("capturable") or group.get("fused"))
    found: dict[str | int, Any] = {}
    for key, node in stored.items.items():
        device = parameter.device
        if key == "step" and not steps_on_device:
            device = torch.device("cpu")
        if isinstance(node, TensorNode):
            record = stored.records[node.index]
            found[key] = _tensor(parameter, known.get(key), record, device, is_step=key == "step")
        else:
            found[key] = like_stored(stored.at(key), known.get(key), device=device)
    return found


@torch.no_grad()
def _tensor(
    parameter: nn.Parameter, old: Any, record: TensorRecord, device: torch.device, *, is_step: bool
) -> torch.Tensor:
    """The memory that is there; for state that is not made yet, some divided as the parameter."""
    dtype, shape = TORCH_DTYPES[record.dtype], record.shape
    if leaf_kind(old) is not None and tuple(old.shape) == shape:
        return old
    if shape == tuple(parameter.shape) and not is_step:
        return torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
    if leaf_kind(parameter) == "dtensor" and shape:
        return _replicated(parameter, shape, dtype)
    return torch.zeros(shape, dtype=dtype, device=device)


def _replicated(parameter: Any, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A sum over rows, say: whole on every rank of the parameter's mesh."""
    from torch.distributed.tensor import Replicate, zeros

    mesh = parameter.device_mesh
    return zeros(tuple(shape), dtype=dtype, device_mesh=mesh, placements=[Replicate()] * mesh.ndim)

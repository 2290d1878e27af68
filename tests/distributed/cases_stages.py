"""Pipeline stages and experts: each rank has other parameters, and optimizers of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.optim import Adafactor, Adam, Optimizer

import shardkeep as sk
from tests.distributed.parallelisms import mesh_of
from tests.distributed.tensors import assert_group_works, assert_same

SECONDS = 60.0
# The layers of each stage of a rank; "router" stands on several ranks, as replicas.
Split = Sequence[Sequence[str]]
LAYERS = [*(f"layer{number}" for number in range(7)), "router"]


class Stages:
    """The stages of one rank, an optimizer for each."""

    def __init__(self, split: Split, *, seed: int) -> None:
        self.modules = [nn.ModuleDict({n: _layer(n, seed) for n in names}) for names in split]
        self.optimizers = [_optimizer(module, seed) for module in self.modules]

    def state(self) -> dict[str, Any]:
        """A rank with one stage keeps it as it is, one with several as parts."""
        if len(self.modules) == 1:
            return {"model": self.modules[0], "optim": self.optimizers[0]}
        return {"model": sk.parts(*self.modules), "optim": sk.parts(*self.optimizers)}

    def train(self, steps: Iterable[int]) -> None:
        """Gradients follow from a parameter's name and the step, so that no rank must talk."""
        for step in steps:
            for name, parameter in self.parameters().items():
                generator = torch.Generator().manual_seed(step * 1000 + hash_of(name))
                parameter.grad = torch.randn(parameter.shape, generator=generator)
            for optimizer in self.optimizers:
                optimizer.step()

    def parameters(self) -> dict[str, nn.Parameter]:
        return {n: p for module in self.modules for n, p in module.named_parameters()}

    def known(self) -> dict[str, dict[str, Any]]:
        """What the optimizers know, by the names of parameters."""
        names = {parameter: name for name, parameter in self.parameters().items()}
        found: dict[str, dict[str, Any]] = {}
        for optimizer in self.optimizers:
            found |= {names[p]: known for p, known in optimizer.state.items()}  # type: ignore[index]
        return found


def _layer(name: str, seed: int) -> nn.Linear:
    torch.manual_seed(seed * 1000 + hash_of(name))
    return nn.Linear(3, 4)


def hash_of(name: str) -> int:
    """The same in every process."""
    return sum(ord(letter) * (at + 1) for at, letter in enumerate(name))


def _optimizer(module: nn.Module, seed: int) -> Optimizer:
    """Two groups, of which a stage without the router has one empty."""
    inner = [p for name, p in module.named_parameters() if "router" not in name]
    router = [p for name, p in module.named_parameters() if "router" in name]
    return Adam([{"params": inner}, {"params": router, "lr": 0.5 * seed}], lr=0.1 * seed)


def save_stages(rank: int, world: int, *, path: str, splits: list[Split]) -> None:
    stages = Stages(splits[rank], seed=1)
    stages.train(range(3))
    sk.save(stages.state(), path, timeout=SECONDS)


def load_stages(rank: int, world: int, *, path: str, splits: list[Split]) -> int:
    """The stages go on as those of a process that has them all; how many parameters are here."""
    found = assert_stages_go_on(path, splits[rank])
    assert_group_works()
    return found


def assert_stages_go_on(path: str, split: Split) -> int:
    """The number of parameters that were compared."""
    truth = Stages([LAYERS], seed=1)
    truth.train(range(3))
    stages = Stages(split, seed=2)

    sk.load(path, stages.state(), timeout=SECONDS)

    _assert_alike(stages, truth)
    for one in (stages, truth):
        one.train(range(3, 6))
    _assert_alike(stages, truth)
    return len(stages.parameters())


def _assert_alike(stages: Stages, truth: Stages) -> None:
    parameters, known = truth.parameters(), truth.known()
    for name, parameter in stages.parameters().items():
        assert_same(parameter, parameters[name])
    for name, values in stages.known().items():
        assert list(values) == list(known[name])
        for key, value in values.items():
            assert_same(value, known[name][key])
    for optimizer in stages.optimizers:
        rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
        for name, parameter in stages.parameters().items():
            expected = 0.5 if "router" in name else 0.1
            assert rates.get(id(parameter), expected) == expected


# All experts as one tensor


class Experts(nn.Module):
    def __init__(self, mesh: DeviceMesh | None, dim: int, *, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.mesh, self.dim = mesh, dim
        self.weight = nn.Parameter(self.divided(torch.randn(8, 4, 6)))
        self.scale = nn.Parameter(torch.randn(()))

    def divided(self, full: torch.Tensor) -> torch.Tensor:
        if self.mesh is None:
            return full
        return distribute_tensor(full, self.mesh, [Shard(self.dim)], src_data_rank=None)

    def train_with(self, optimizer: Optimizer, steps: Iterable[int]) -> None:
        for step in steps:
            torch.manual_seed(step)
            self.weight.grad = self.divided(torch.randn(8, 4, 6))
            self.scale.grad = torch.randn(())
            optimizer.step()


OPTIMIZERS = {
    "adam": lambda parameters: Adam(parameters, lr=0.1, foreach=False),
    "adafactor": lambda parameters: Adafactor(parameters, lr=0.1, foreach=False),
}


def save_experts(rank: int, world: int, *, path: str, optimizer: str) -> None:
    """By rows of experts; the gathered state lies beside it."""
    experts = Experts(mesh_of(tuple(range(world)), 1, "ep"), 0, seed=1)
    its = OPTIMIZERS[optimizer](experts.parameters())
    experts.train_with(its, range(3))
    sk.save({"model": experts, "optim": its}, path, timeout=SECONDS)
    gathered = _gathered(experts, its)
    if rank == 0:
        torch.save(gathered, f"{path}.pt")


def load_experts(rank: int, world: int, *, path: str, optimizer: str, dim: int) -> None:
    """Divided along another dimension, or among another number of ranks."""
    experts = Experts(mesh_of(tuple(range(world)), 1, "ep"), dim, seed=2)
    assert_experts_go_on(path, optimizer, experts)


def assert_experts_go_on(path: str, optimizer: str, experts: Experts) -> None:
    its = OPTIMIZERS[optimizer](experts.parameters())

    sk.load(path, {"model": experts, "optim": its}, timeout=SECONDS)

    truth: dict[str, Any] = torch.load(f"{path}.pt", weights_only=True)
    found = _gathered(experts, its)
    assert found.keys() == truth.keys()
    for key, value in truth.items():
        assert_same(found[key], value)
    if optimizer == "adafactor" and experts.dim > 0:
        return  # torch's own cannot make a step with parameters divided that way
    experts.train_with(its, range(3, 5))
    assert not torch.equal(_full(experts.weight), truth["weight"])


def _gathered(experts: Experts, its: Optimizer) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for name, parameter in experts.named_parameters():
        found[name] = _full(parameter)
        for key, value in its.state[parameter].items():
            found[f"{name}/{key}"] = _full(value)
    return found


def _full(value: torch.Tensor) -> torch.Tensor:
    full = value.full_tensor() if isinstance(value, DTensor) else value
    return full.detach().clone()

"""Which model and optimizers do the tests use, and when are two of them the same?"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adafactor, Adam, AdamW, Optimizer

Make = Callable[[Iterable[Any]], Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "adam": partial(Adam, lr=0.1, betas=(0.5, 0.9)),
    "adamw": partial(AdamW, lr=0.1, weight_decay=0.3),
    "amsgrad": partial(Adam, lr=0.1, amsgrad=True),
    "momentum": partial(SGD, lr=0.1, momentum=0.9, nesterov=True),
    "plain": partial(SGD, lr=0.1),
    "adafactor": partial(Adafactor, lr=0.1),
    "rmsprop": partial(torch.optim.RMSprop, lr=0.1, momentum=0.5, centered=True),
    "nadam": partial(torch.optim.NAdam, lr=0.1),
    "asgd": partial(torch.optim.ASGD, lr=0.1, t0=1.0),
    "rprop": partial(torch.optim.Rprop, lr=0.1),
    "adagrad": partial(torch.optim.Adagrad, lr=0.1, lr_decay=0.1),
}
adam = OPTIMIZERS["adam"]
sgd = OPTIMIZERS["momentum"]


class Model(nn.Module):
    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(3, 4)
        self.second = nn.Linear(4, 3, bias=False)
        self.factor = nn.Parameter(torch.rand(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu()) * self.factor


def train(model: nn.Module, *optimizers: Optimizer, steps: int = 2, start: int = 0) -> None:
    """The same steps for the same start."""
    for number in range(start, start + steps):
        generator = torch.Generator().manual_seed(number)
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        for parameter in parameters:
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.grad = noise.to(parameter.dtype)
        for optimizer in optimizers:
            optimizer.step()


def by_parameter(model: nn.Module, optimizer: Optimizer) -> dict[str, dict[str, Any]]:
    """What the optimizer knows of each parameter that it knows something of."""
    names: dict[Any, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {names[p]: known for p, known in optimizer.state.items() if known}


def assert_same(a: Any, b: Any, where: str = "") -> None:
    """Trees with the same types, dtypes and bits."""
    assert type(a) is type(b), f"{where}: {a!r} instead of {b!r}"
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype, where
        assert a.device == b.device, where
        assert torch.equal(a, b), f"{where}: {a} instead of {b}"
    elif isinstance(a, dict):
        assert list(a) == list(b), where
        for key in a:
            assert_same(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), where
        for number, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_same(x, y, f"{where}.{number}")
    else:
        assert a == b, where


def assert_same_run(model: Any, optimizer: Optimizer, fresh: Any, late: Optimizer) -> None:
    """Parameters, state and options are the same now, and after further steps."""
    for start in (10, 20):
        assert_same(dict(fresh.state_dict()), dict(model.state_dict()))
        known = by_parameter(model, optimizer)
        assert_same(dict(sorted(by_parameter(fresh, late).items())), dict(sorted(known.items())))
        train(model, optimizer, start=start)
        train(fresh, late, start=start)


def options(optimizer: Optimizer) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in group.items() if key not in ("params", "param_names")}
        for group in optimizer.param_groups
    ]

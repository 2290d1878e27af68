"""Schedulers, scalers, loaders: anything with a state dict comes back as it was saved."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD, lr_scheduler as schedulers
from torch.optim.lr_scheduler import LRScheduler

import shardkeep as sk


class Warmup:
    """A callable with a state, of which LambdaLR keeps the attributes."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.calls = 0

    def __call__(self, step: int) -> float:
        self.calls += 1
        return min(1.0, (step + 1) / self.steps)


SCHEDULERS: dict[str, Callable[[SGD], LRScheduler]] = {
    "step": lambda its: schedulers.StepLR(its, step_size=2, gamma=0.5),
    "multi_step": lambda its: schedulers.MultiStepLR(its, milestones=[2, 3, 3, 8], gamma=0.5),
    "one_cycle": lambda its: schedulers.OneCycleLR(its, max_lr=[0.5, 0.9], total_steps=20),
    "cosine": lambda its: schedulers.CosineAnnealingLR(its, T_max=9),
    "restarts": lambda its: schedulers.CosineAnnealingWarmRestarts(its, T_0=3),
    "cyclic": lambda its: schedulers.CyclicLR(its, base_lr=0.01, max_lr=0.5, step_size_up=3),
    "lambda": lambda its: schedulers.LambdaLR(its, [Warmup(5), lambda step: 0.9**step]),
    "sequential": lambda its: schedulers.SequentialLR(
        its,
        [schedulers.LinearLR(its, total_iters=3), schedulers.MultiStepLR(its, [2, 4])],
        milestones=[4],
    ),
    "chained": lambda its: schedulers.ChainedScheduler(
        [schedulers.ExponentialLR(its, 0.9), schedulers.ConstantLR(its, total_iters=5)]
    ),
}
EACH = pytest.mark.parametrize("make", SCHEDULERS.values(), ids=SCHEDULERS)


class Run:
    """Two groups with learning rates that a scheduler changes."""

    def __init__(self, make: Callable[[SGD], LRScheduler], rate: Any = 0.1) -> None:
        self.model = nn.Linear(2, 2)
        groups = [
            {"params": [self.model.weight], "lr": rate},
            {"params": [self.model.bias], "lr": rate * 2},
        ]
        self.optimizer = SGD(groups, momentum=0.9, foreach=False)
        self.scheduler = make(self.optimizer)
        self.tree = {"model": self.model, "optim": self.optimizer, "sched": self.scheduler}

    def go(self, steps: int) -> list[list[float]]:
        """The learning rates of each step."""
        found: list[list[float]] = []
        for _ in range(steps):
            self.optimizer.step()
            self.scheduler.step()
            found.append([float(group["lr"]) for group in self.optimizer.param_groups])
        return found


@EACH
@pytest.mark.parametrize("other_first", [0, 7])
@pytest.mark.parametrize("first", ["sched", "optim"])
def test_learning_rates_go_on(tmp_path, make, other_first, first):
    run = Run(make)
    run.go(5)
    sk.save(run.tree, tmp_path / "c")

    fresh = Run(make, rate=0.3)
    fresh.go(other_first)
    sk.load(tmp_path / "c", {first: fresh.tree[first], **fresh.tree})

    rates = run.go(8)
    assert fresh.go(8) == rates
    assert len({tuple(both) for both in rates}) > 1, "these rates never change"


@EACH
def test_learning_rates_that_are_tensors_go_on(tmp_path, make):
    run = Run(make, rate=torch.tensor(0.1))
    run.go(5)
    sk.save(run.tree, tmp_path / "c")

    fresh = Run(make, rate=torch.tensor(0.3))
    sk.load(tmp_path / "c", fresh.tree)

    assert fresh.go(8) == run.go(8)
    assert all(isinstance(its["lr"], torch.Tensor) for its in fresh.optimizer.param_groups)


def test_milestones_come_back_as_a_counter(tmp_path):
    """A scheduler that is asked for a certain epoch lists their elements."""
    run = Run(SCHEDULERS["multi_step"])
    run.go(5)
    sk.save(run.tree, tmp_path / "c")

    fresh: Any = Run(lambda its: schedulers.MultiStepLR(its, [1]))
    sk.load(tmp_path / "c", fresh.tree)

    assert fresh.scheduler.milestones == Counter([2, 3, 3, 8])
    assert type(fresh.scheduler.milestones) is Counter
    assert fresh.scheduler._get_closed_form_lr() == pytest.approx([0.1 / 8, 0.2 / 8])


def test_a_plateau_is_found_again(tmp_path):
    def made() -> Any:
        optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
        return schedulers.ReduceLROnPlateau(optimizer, patience=2, factor=0.5)

    one, other = made(), made()
    for loss in (3.0, 2.0, 4.0, 5.0):
        one.step(loss)
    sk.save({"sched": one}, tmp_path / "c")
    sk.load(tmp_path / "c", {"sched": other})

    assert (other.best, other.num_bad_epochs) == (2.0, 2)
    other.step(6.0)
    assert other.optimizer.param_groups[0]["lr"] == 0.05


def test_a_scaler_goes_on(tmp_path):
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)
    scaler.scale(torch.ones(()))
    scaler.update(new_scale=16.0)
    sk.save({"scaler": scaler}, tmp_path / "c")

    fresh = torch.amp.GradScaler("cpu", init_scale=2.0)
    sk.load(tmp_path / "c", {"scaler": fresh})

    assert fresh.state_dict() == scaler.state_dict()
    scaled = fresh.scale(torch.ones(()))
    assert isinstance(scaled, torch.Tensor)
    assert scaled.item() == scaler.get_scale() == 16.0


# Objects whose state dict has another structure at each moment


class Loader:
    """Says what it is given, and takes whatever it is told."""

    def __init__(self, state: Any) -> None:
        self.state = state
        self.told: list[Any] = []

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.told.append(state)


SAVED = {
    "workers": [{"at": 3, "seen": torch.tensor([1, 2, 3])}, {"at": 5, "seen": torch.tensor([7])}],
    "buffer": (np.arange(4, dtype=np.int16), None, "text"),
    "sparse": torch.sparse_coo_tensor(
        torch.tensor([[0, 2]]), torch.tensor([5.0, 6.0]), (4,), check_invariants=True
    ),
    "empty": {},
    7: {"of": b"bytes"},
}


@pytest.mark.parametrize(
    "before",
    [
        {},
        None,
        3,
        torch.zeros(5),
        {"workers": None, "buffer": [1, 2, 3, 4, 5], "more": 3},
        {"workers": [{"seen": torch.zeros(3)}], "buffer": (torch.zeros(9),), 7: {}},
    ],
)
def test_the_checkpoint_alone_knows_the_structure(tmp_path, before):
    sk.save({"loader": Loader(SAVED)}, tmp_path / "c")

    loader = Loader(before)
    sk.load(tmp_path / "c", {"loader": loader})

    (told,) = loader.told
    assert list(told) == list(SAVED)
    assert [worker["at"] for worker in told["workers"]] == [3, 5]
    assert [worker["seen"].tolist() for worker in told["workers"]] == [[1, 2, 3], [7]]
    assert told["workers"][0]["seen"].dtype == torch.int64
    assert told["buffer"][0].tolist() == [0, 1, 2, 3]
    assert told["buffer"][0].dtype == np.int16
    assert told["buffer"][1:] == (None, "text")
    assert told["sparse"].to_dense().tolist() == [5.0, 0.0, 6.0, 0.0]
    assert (told["empty"], told[7]) == ({}, {"of": b"bytes"})


def test_tensors_that_fit_are_filled_where_they_are(tmp_path):
    sk.save({"loader": Loader({"a": torch.arange(3), "b": torch.arange(2)})}, tmp_path / "c")
    mine = {"a": torch.zeros(3, dtype=torch.int64), "b": torch.zeros(2)}

    loader = Loader(mine)
    sk.load(tmp_path / "c", {"loader": loader})

    assert loader.told[0]["a"] is mine["a"]
    assert mine["a"].tolist() == [0, 1, 2]
    assert loader.told[0]["b"].dtype == torch.int64
    assert mine["b"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("saved", [{}, [], ()])
def test_an_empty_state_is_given_back_too(tmp_path, saved):
    sk.save({"loader": Loader(saved), "x": 1}, tmp_path / "c")

    loader = Loader({"at": 5})
    sk.load(tmp_path / "c", {"loader": loader, "x": 0})

    assert loader.told == [saved]


def test_a_state_that_was_not_asked_for_is_not_given_back(tmp_path):
    sk.save({"loader": Loader({}), "other": Loader({"at": 1}), "x": 1}, tmp_path / "c")

    loaders = Loader({}), Loader({})
    into = {"loader": loaders[0], "other": loaders[1], "x": 0}
    sk.load(tmp_path / "c", into, keys=["x"])

    assert into["x"] == 1
    assert [loader.told for loader in loaders] == [[], []]


def test_a_state_that_was_not_saved_is_missing(tmp_path):
    sk.save({"x": 1}, tmp_path / "c")
    loader = Loader({"at": 5})

    with pytest.raises(sk.NotFoundError, match="1 not in the checkpoint: loader"):
        sk.load(tmp_path / "c", {"loader": loader, "x": 0})
    report = sk.load(tmp_path / "c", {"loader": loader, "x": 0}, strict=False)

    assert report.missing == ["loader"]
    assert loader.told == []


def test_special_dicts_come_back_as_what_the_object_has(tmp_path):
    sk.save({"loader": Loader({kind: {"a": 1} for kind in "cdop"})}, tmp_path / "c")

    before = {"c": Counter(), "d": defaultdict(list), "o": OrderedDict(b=2), "p": {}}
    loader = Loader(before)
    sk.load(tmp_path / "c", {"loader": loader})

    (told,) = loader.told
    assert [type(one) for one in told.values()] == [Counter, defaultdict, dict, dict]
    assert all(dict(one) == {"a": 1} for one in told.values())
    assert told["d"]["new"] == []


def test_an_object_is_told_only_when_everything_was_read(tmp_path):
    sk.save({"loader": Loader({"at": 3}), "w": torch.zeros(3)}, tmp_path / "c")
    loader = Loader({"at": 5})

    with pytest.raises(sk.ConflictError, match=r"'w' has shape \(4,\) here"):
        sk.load(tmp_path / "c", {"loader": loader, "w": torch.zeros(4)})

    assert loader.told == []


def test_a_class_with_the_methods_is_no_object_with_a_state(tmp_path):
    with pytest.raises(sk.InvalidError, match="'loader'"):
        sk.save({"loader": Loader}, tmp_path / "c")

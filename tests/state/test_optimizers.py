"""Optimizers are kept by the names of their parameters, and come back bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Adam, Optimizer

import shardkeep as sk
from tests.state.optimizing import (
    OPTIMIZERS,
    Model,
    adam,
    assert_same,
    assert_same_run,
    by_parameter,
    options,
    train,
)

EACH = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)


# Every optimizer


@EACH
def test_a_fresh_optimizer_goes_on_as_the_saved_one(tmp_path, make):
    model = Model()
    optimizer = make(model.parameters())
    train(model, optimizer)
    sk.save({"model": model, "optim": optimizer}, tmp_path / "c")

    fresh = Model(seed=5)
    late = make(fresh.parameters())
    sk.load(tmp_path / "c", {"model": fresh, "optim": late})

    assert options(late) == options(optimizer)
    assert_same_run(model, optimizer, fresh, late)


@EACH
def test_an_optimizer_that_has_made_steps_is_set_back_in_its_own_memory(tmp_path, make):
    model = Model()
    optimizer = make(model.parameters())
    train(model, optimizer)
    sk.save({"model": model, "optim": optimizer}, tmp_path / "c")
    twin = Model(seed=5)
    other = make(twin.parameters())
    train(twin, other, steps=5, start=50)
    places = [id(v) for known in other.state.values() for v in known.values() if v is not None]

    sk.load(tmp_path / "c", {"model": twin, "optim": other})

    after = [id(v) for known in other.state.values() for v in known.values() if v is not None]
    assert [place for place in after if place in places] == after
    assert_same_run(model, optimizer, twin, other)


def test_lists_of_tensors_in_the_state_come_back(tmp_path):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    x = torch.arange(12.0).reshape(4, 3)

    def losing(one: nn.Module) -> Callable[[], torch.Tensor]:
        def loss() -> torch.Tensor:
            one.zero_grad()
            lost = (one(x) - 1).square().mean()
            lost.backward()
            return lost

        return loss

    optimizer.step(losing(model))  # type: ignore[arg-type]
    sk.save({"model": model, "optim": optimizer}, tmp_path / "c")
    fresh = nn.Linear(3, 1)
    late = torch.optim.LBFGS(fresh.parameters(), lr=1.0, max_iter=3)

    sk.load(tmp_path / "c", {"model": fresh, "optim": late})
    optimizer.step(losing(model))  # type: ignore[arg-type]
    late.step(losing(fresh))  # type: ignore[arg-type]

    assert len(optimizer.state[model.weight]["old_dirs"]) > 1
    assert_same(dict(fresh.state_dict()), dict(model.state_dict()))
    assert_same(by_parameter(fresh, late), by_parameter(model, optimizer))


def test_an_optimizer_made_of_named_parameters_is_the_same(tmp_path):
    model = Model()
    optimizer = adam(model.named_parameters())
    train(model, optimizer)
    sk.save({"model": model, "optim": optimizer}, tmp_path / "c")

    fresh = Model(seed=5)
    late = adam(fresh.parameters())
    sk.load(tmp_path / "c", {"model": fresh, "optim": late})

    assert_same_run(model, optimizer, fresh, late)
    assert "param_names" not in late.param_groups[0]


@pytest.mark.parametrize("first", ["model", "optim"])
def test_a_meta_model_and_its_optimizer_load_in_either_order(tmp_path, first):
    model = Model()
    optimizer = adam(model.parameters())
    train(model, optimizer)
    sk.save({"model": model, "optim": optimizer}, tmp_path / "c")

    with torch.device("meta"):
        fresh = Model()
    late = adam(fresh.parameters())
    tree = {"model": fresh, "optim": late}
    sk.load(tmp_path / "c", {first: tree.pop(first), **tree})

    assert_same_run(model, optimizer, fresh, late)


def test_how_to_compute_is_the_optimizers_own_matter(tmp_path):
    model = Model()
    optimizer = Adam(model.parameters(), lr=0.1, foreach=True)
    train(model, optimizer)
    sk.save({"model": model, "optim": optimizer}, tmp_path / "c")

    late = Adam(model.parameters(), lr=0.5, fused=True)
    sk.load(tmp_path / "c", {"model": model, "optim": late})

    assert late.param_groups[0]["lr"] == 0.1
    assert (late.param_groups[0]["foreach"], late.param_groups[0]["fused"]) == (None, True)


# Groups of parameters


def two_groups(model: Model, make: Any = adam, **second: Any) -> Optimizer:
    weights = [model.first.weight, model.second.weight]
    others = [model.first.bias, model.factor]
    return make([{"params": weights}, {"params": others, "lr": 0.7, **second}])


def test_groups_keep_their_own_options(tmp_path):
    model = Model()
    optimizer = two_groups(model, weight_decay=0.25)
    train(model, optimizer)
    sk.save({"model": model, "optim": optimizer}, tmp_path / "c")

    fresh = Model(seed=5)
    late = Adam([{"params": group["params"]} for group in two_groups(fresh).param_groups])
    sk.load(tmp_path / "c", {"model": fresh, "optim": late})

    assert options(late) == options(optimizer)
    assert_same_run(model, optimizer, fresh, late)


def test_the_order_of_groups_and_of_parameters_does_not_matter(tmp_path):
    model = Model()
    optimizer = two_groups(model)
    train(model, optimizer)
    sk.save({"model": model, "optim": optimizer}, tmp_path / "c")

    fresh = Model(seed=5)
    late = adam([[fresh.factor, fresh.first.bias], [fresh.second.weight, fresh.first.weight]][0])
    late.add_param_group({"params": [fresh.second.weight, fresh.first.weight]})
    sk.load(tmp_path / "c", {"model": fresh, "optim": late})

    assert [group["lr"] for group in late.param_groups] == [0.7, 0.1]
    assert_same_run(model, optimizer, fresh, late)


def test_a_group_may_be_divided(tmp_path):
    model = Model()
    optimizer = two_groups(model)
    train(model, optimizer)
    sk.save({"model": model, "optim": optimizer}, tmp_path / "c")

    fresh = Model(seed=5)
    late = adam([{"params": [parameter], "lr": 9.0} for parameter in fresh.parameters()])
    sk.load(tmp_path / "c", {"model": fresh, "optim": late})

    of = {id(group["params"][0]): group["lr"] for group in late.param_groups}
    assert of[id(fresh.first.bias)] == of[id(fresh.factor)] == 0.7
    assert of[id(fresh.first.weight)] == of[id(fresh.second.weight)] == 0.1
    assert_same_run(model, optimizer, fresh, late)


def test_groups_with_the_same_options_may_be_united(tmp_path):
    model = Model()
    optimizer = two_groups(model, lr=0.1)
    train(model, optimizer)
    sk.save({"model": model, "optim": optimizer}, tmp_path / "c")

    fresh = Model(seed=5)
    late = Adam(fresh.parameters(), lr=9.0)
    sk.load(tmp_path / "c", {"model": fresh, "optim": late})

    assert_same_run(model, optimizer, fresh, late)


def test_groups_that_differ_in_how_to_compute_alone_may_be_united(tmp_path):
    model = Model()
    optimizer = two_groups(model, lr=0.1, foreach=True)
    sk.save({"model": model, "optim": optimizer}, tmp_path / "c")

    late = Adam(model.parameters(), lr=9.0)
    sk.load(tmp_path / "c", {"model": model, "optim": late})

    assert late.param_groups[0]["lr"] == 0.1
    assert late.param_groups[0]["foreach"] is None


def test_groups_that_differ_cannot_be_united(tmp_path):
    model = Model()
    sk.save({"model": model, "optim": two_groups(model)}, tmp_path / "c")

    fresh = Model(seed=5)
    late = Adam(fresh.parameters(), lr=9.0)
    with pytest.raises(
        sk.ConflictError, match=r"group 0 holds .* different options \(lr: 0\.\d, 0\.\d\)"
    ):
        sk.load(tmp_path / "c", {"model": fresh, "optim": late})

    assert late.param_groups[0]["lr"] == 9.0
    assert_same(dict(fresh.state_dict()), dict(Model(seed=5).state_dict()))


def test_empty_groups_get_their_options_back(tmp_path):
    model = Model()
    optimizer = adam(model.parameters())
    optimizer.add_param_group({"params": [], "lr": 0.5})
    train(model, optimizer)
    sk.save({"model": model, "optim": optimizer}, tmp_path / "c")

    fresh = Model(seed=5)
    late = adam(fresh.parameters())
    late.add_param_group({"params": [], "lr": 9.0})
    sk.load(tmp_path / "c", {"model": fresh, "optim": late})

    assert [group["lr"] for group in late.param_groups] == [0.1, 0.5]
    assert_same_run(model, optimizer, fresh, late)


# Parameters


def test_frozen_parameters_have_no_state_and_get_none(tmp_path):
    model = Model()
    model.first.requires_grad_(False)
    optimizer = adam(model.parameters())
    train(model, optimizer)
    sk.save({"model": model, "optim": optimizer}, tmp_path / "c")

    fresh = Model(seed=5)
    late = adam(fresh.parameters())
    train(fresh, late, steps=1)
    fresh.first.requires_grad_(False)
    fresh.zero_grad()
    sk.load(tmp_path / "c", {"model": fresh, "optim": late})

    assert list(by_parameter(fresh, late)) == ["factor", "second.weight"]
    assert_same_run(model, optimizer, fresh, late)


def test_an_optimizer_before_its_first_step_makes_one_that_has_stepped_forget(tmp_path):
    model = Model()
    optimizer = adam(model.parameters())
    sk.save({"model": model, "optim": optimizer}, tmp_path / "c")

    fresh = Model(seed=5)
    late = adam(fresh.parameters())
    train(fresh, late)
    sk.load(tmp_path / "c", {"model": fresh, "optim": late})

    assert by_parameter(fresh, late) == {}
    assert_same_run(model, optimizer, fresh, late)


def tied(seed: int) -> Any:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    return model


def test_a_tied_parameter_has_one_state(tmp_path):
    model = tied(0)
    optimizer = adam(model.parameters())
    train(model, optimizer)
    sk.save({"model": model, "optim": optimizer}, tmp_path / "c")

    fresh = tied(5)
    late = adam(fresh.parameters())
    sk.load(tmp_path / "c", {"model": fresh, "optim": late})

    assert list(sk.load(tmp_path / "c")["optim"]["state"]) == ["0.weight", "0.bias", "1.bias"]
    assert_same_run(model, optimizer, fresh, late)


def test_a_tied_parameter_is_found_by_either_name(tmp_path):
    """The order in which a model names its parts is not the order of another version of it."""
    both, fresh = tied(0), tied(5)
    model: Any = nn.ModuleDict({"a": both[0], "b": both[1]})
    optimizer = adam(model.parameters())
    train(model, optimizer)
    sk.save({"model": model, "optim": optimizer}, tmp_path / "c")

    late = adam(fresh.parameters())
    turned = nn.ModuleDict({"b": fresh[1], "a": fresh[0]})
    sk.load(tmp_path / "c", {"model": turned, "optim": late})

    assert torch.equal(
        late.state[fresh[0].weight]["exp_avg"], optimizer.state[model["a"].weight]["exp_avg"]
    )


def test_precise_state_of_imprecise_parameters_stays_precise(tmp_path):
    model = Model().to(torch.bfloat16)
    optimizer = adam(model.parameters())
    train(model, optimizer)
    for known in optimizer.state.values():
        for name in ("exp_avg", "exp_avg_sq"):
            known[name] = known[name].float() + 1 / 3
    sk.save({"model": model, "optim": optimizer}, tmp_path / "c")

    fresh = Model(seed=5).to(torch.bfloat16)
    late = adam(fresh.parameters())
    sk.load(tmp_path / "c", {"model": fresh, "optim": late})

    assert late.state[fresh.first.weight]["exp_avg"].dtype == torch.float32
    assert_same(by_parameter(fresh, late), by_parameter(model, optimizer))


@pytest.mark.parametrize("saved", [0.25, torch.tensor(0.25)])
@pytest.mark.parametrize("own", [9.0, torch.tensor(9.0)])
def test_whether_a_learning_rate_is_a_tensor_is_the_optimizers_own_matter(tmp_path, saved, own):
    model = Model()
    optimizer = Adam(model.parameters(), lr=saved, foreach=False)
    sk.save({"model": model, "optim": optimizer}, tmp_path / "c")

    late = Adam(model.parameters(), lr=own, foreach=False)
    sk.load(tmp_path / "c", {"model": model, "optim": late})

    assert type(late.param_groups[0]["lr"]) is type(own)
    assert late.param_groups[0]["lr"] == 0.25
    assert own == 9.0


def test_groups_of_the_same_options_do_not_share_a_learning_rate_tensor(tmp_path):
    model = Model()
    rate = torch.tensor(0.25)
    make = partial(Adam, lr=rate, foreach=False)
    optimizer = two_groups(model, make, lr=rate.clone())
    sk.save({"model": model, "optim": optimizer}, tmp_path / "c")

    late = two_groups(model, make, lr=torch.tensor(9.0))
    sk.load(tmp_path / "c", {"model": model, "optim": late})
    late.param_groups[1]["lr"].fill_(0.5)

    assert [float(group["lr"]) for group in late.param_groups] == [0.25, 0.5]

"""Several optimizers, several modules, parts of them, and what fits a checkpoint only in part."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import Adam, Optimizer

import shardkeep as sk
from tests.state.optimizing import (
    Model,
    adam,
    assert_same,
    assert_same_run,
    by_parameter,
    sgd,
    train,
)

# Several modules and several optimizers


def test_several_optimizers_of_one_module(tmp_path):
    model = Model()
    fast, slow = adam([model.first.weight, model.first.bias]), sgd([model.second.weight])
    train(model, fast, slow)
    sk.save({"model": model, "optim": [fast, slow]}, tmp_path / "c")

    fresh = Model(seed=5)
    late = adam([fresh.first.weight, fresh.first.bias]), sgd([fresh.second.weight])
    sk.load(tmp_path / "c", {"model": fresh, "optim": list(late)})
    train(model, fast, slow, start=10)
    train(fresh, *late, start=10)

    assert_same(dict(fresh.state_dict()), dict(model.state_dict()))
    assert_same(by_parameter(fresh, late[0]), by_parameter(model, fast))
    assert_same(by_parameter(fresh, late[1]), by_parameter(model, slow))


def test_an_optimizer_over_several_modules_names_their_places(tmp_path):
    def made(seed: int) -> tuple[nn.ModuleDict, Optimizer]:
        both = nn.ModuleDict({"maker": Model(seed), "judge": Model(seed + 1)})
        return both, adam(both.parameters())

    both, optimizer = made(0)
    train(both, optimizer)
    sk.save({**both, "optim": optimizer}, tmp_path / "c")

    fresh, late = made(5)
    sk.load(tmp_path / "c", {"optim": late, **dict(reversed(list(fresh.items())))})

    assert "judge.first.weight" in sk.load(tmp_path / "c")["optim"]["state"]
    assert_same_run(both, optimizer, fresh, late)


def test_an_optimizer_without_its_module_is_refused(tmp_path):
    model = Model()

    with pytest.raises(
        sk.InvalidError, match=r"a Adam holds a parameter of shape \(\) that no module"
    ):
        sk.save({"optim": Adam([model.factor])}, tmp_path / "c")
    sk.save({"model": model, "optim": Adam(model.parameters())}, tmp_path / "c")
    with pytest.raises(sk.InvalidError, match="put the module into the state, too"):
        sk.load(tmp_path / "c", {"optim": Adam(model.parameters())}, keys=["optim*"])


@pytest.mark.parametrize("rate", [0.1, torch.tensor(0.1)])
def test_parts_are_kept_as_one(tmp_path, rate):
    def made(seed: int) -> tuple[Model, list[Optimizer]]:
        model = Model(seed)
        halves = [list(stage.parameters()) for stage in stages(model)]
        return model, [Adam(half, lr=rate, foreach=False) for half in halves]

    def stages(model: Model) -> list[nn.Module]:
        return [
            nn.ModuleDict({"first": model.first}),
            nn.ParameterDict({"factor": model.factor}),
            nn.ModuleDict({"second": model.second}),
        ]

    model, optimizers = made(0)
    train(model, *optimizers)
    tree = {"model": sk.parts(*stages(model)), "optim": sk.parts(*optimizers)}
    sk.save(tree, tmp_path / "c")

    whole = Model(5)
    one = Adam(whole.parameters(), lr=9.0)
    sk.load(tmp_path / "c", {"model": whole, "optim": one})
    fresh, late = made(6)
    tree = {"model": sk.parts(*reversed(stages(fresh))), "optim": sk.parts(*reversed(late))}
    sk.load(tmp_path / "c", tree)

    assert_same(dict(whole.state_dict()), dict(model.state_dict()))
    assert_same(dict(fresh.state_dict()), dict(model.state_dict()))
    for optimizer, again in zip(optimizers, late, strict=True):
        assert_same(by_parameter(fresh, again), by_parameter(model, optimizer))
    known = {name: of for its in optimizers for name, of in by_parameter(model, its).items()}
    assert_same(dict(sorted(by_parameter(whole, one).items())), dict(sorted(known.items())))
    assert one.param_groups[0]["lr"] == pytest.approx(0.1)


def test_parts_with_the_same_names_are_refused(tmp_path):
    with pytest.raises(sk.ConflictError, match=r"'model.weight' is in several of the parts"):
        sk.save({"model": sk.parts(nn.Linear(1, 1), nn.Linear(1, 1))}, tmp_path / "c")


def test_parts_are_objects_with_a_state():
    with pytest.raises(sk.InvalidError, match=r"parts\(\) takes modules"):
        sk.parts(nn.Linear(1, 1), {"weight": torch.zeros(1)})


# What fits only in part


class Larger(Model):
    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.third = nn.Linear(2, 1)


def test_a_new_parameter_is_missing_unless_that_is_allowed(tmp_path):
    model = Model()
    optimizer = adam(model.parameters())
    train(model, optimizer)
    sk.save({"model": model, "optim": optimizer}, tmp_path / "c")
    larger = Larger(seed=5)
    late = Adam(larger.parameters(), lr=9.0)
    train(larger, late, steps=1, start=30)
    third = larger.third.weight.clone(), late.state[larger.third.weight]["exp_avg"].clone()

    with pytest.raises(sk.NotFoundError, match=r"not in the checkpoint: model\.third\.weight"):
        sk.load(tmp_path / "c", {"model": larger, "optim": late})
    report = sk.load(tmp_path / "c", {"model": larger, "optim": late}, strict=False)

    assert "optim.params.third.weight" in report.missing
    assert late.param_groups[0]["lr"] == 0.1
    assert_same(third, (larger.third.weight.data, late.state[larger.third.weight]["exp_avg"]))
    known = by_parameter(model, optimizer)
    found = {name: of for name, of in by_parameter(larger, late).items() if "third" not in name}
    assert_same(dict(sorted(found.items())), dict(sorted(known.items())))
    train(larger, late)


def test_a_parameter_that_is_gone_is_unexpected_unless_that_is_allowed(tmp_path):
    larger = Larger()
    optimizer = adam(larger.parameters())
    train(larger, optimizer)
    sk.save({"model": larger, "optim": optimizer}, tmp_path / "c")
    model = Model(seed=5)
    late = adam(model.parameters())

    with pytest.raises(sk.NotFoundError, match=r"in the checkpoint only: .*third"):
        sk.load(tmp_path / "c", {"model": model, "optim": late})
    sk.load(tmp_path / "c", {"model": model, "optim": late}, strict=False)

    expected = {k: of for k, of in by_parameter(larger, optimizer).items() if "third" not in k}
    assert_same(by_parameter(model, late), expected)


def test_another_shape_is_refused_and_nothing_changes(tmp_path):
    model = Model()
    optimizer = adam(model.parameters())
    train(model, optimizer)
    sk.save({"model": model, "optim": optimizer}, tmp_path / "c")
    other = Model(seed=5)
    other.second = nn.Linear(4, 7, bias=False)
    late = Adam(other.parameters(), lr=9.0)
    before = other.first.weight.clone()

    with pytest.raises(sk.ConflictError, match=r"'model.second.weight' has shape \(7, 4\) here"):
        sk.load(tmp_path / "c", {"model": other, "optim": late})

    assert torch.equal(other.first.weight, before)
    assert not late.state
    assert late.param_groups[0]["lr"] == 9.0


def test_keys_for_the_model_leave_the_optimizer_alone(tmp_path):
    model = Model()
    optimizer = adam(model.parameters())
    train(model, optimizer)
    sk.save({"model": model, "optim": optimizer}, tmp_path / "c")
    fresh = Model(seed=5)
    late = Adam(fresh.parameters(), lr=9.0)

    report = sk.load(tmp_path / "c", {"model": fresh, "optim": late}, keys=["model.*"])

    assert_same(dict(fresh.state_dict()), dict(model.state_dict()))
    assert not late.state
    assert late.param_groups[0]["lr"] == 9.0
    assert all(name.startswith("model.") for name in report.loaded)


def test_objects_that_are_not_asked_for_are_not_opened(tmp_path, monkeypatch):
    """They would make memory for state that nobody wants."""
    model = Model()
    optimizer = adam(model.parameters())
    train(model, optimizer)
    sk.save({"model": model, "optim": optimizer}, tmp_path / "c")
    late = adam(model.parameters())
    monkeypatch.setattr(late, "state_dict", lambda: pytest.fail("the optimizer was opened"))

    sk.load(tmp_path / "c", {"model": model, "optim": late}, keys=["model.*"])


def test_an_object_that_was_not_saved_is_missing_also_when_it_is_asked_for(tmp_path):
    model = Model()
    sk.save({"model": model}, tmp_path / "c")

    with pytest.raises(sk.NotFoundError, match=r"not in the checkpoint: optim\.params"):
        sk.load(
            tmp_path / "c",
            {"model": model, "optim": adam(model.parameters())},
            keys=["model.*", "optim.*"],
        )


@pytest.mark.parametrize("keys", [["optim.state.*"], ["model.*", "optim.*.first.*"], ["*exp_avg"]])
def test_half_of_an_optimizer_is_refused(tmp_path, keys):
    model = Model()
    optimizer = adam(model.parameters())
    train(model, optimizer)
    sk.save({"model": model, "optim": optimizer}, tmp_path / "c")
    late = Adam(model.parameters(), lr=9.0)

    with pytest.raises(sk.InvalidError, match=r"only a part of 'optim' .* such as 'optim\*'"):
        sk.load(tmp_path / "c", {"model": model, "optim": late}, keys=keys)

    assert not late.state


def test_an_optimizer_alone_may_be_asked_for(tmp_path):
    model = Model()
    optimizer = adam(model.parameters())
    train(model, optimizer)
    sk.save({"model": model, "optim": optimizer}, tmp_path / "c")
    fresh = Model(seed=5)
    late = Adam(fresh.parameters(), lr=9.0)

    sk.load(tmp_path / "c", {"model": fresh, "optim": late}, keys=["optim*"])

    assert_same(by_parameter(fresh, late), by_parameter(model, optimizer))
    assert torch.equal(fresh.first.weight, Model(seed=5).first.weight)

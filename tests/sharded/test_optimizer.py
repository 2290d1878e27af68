"""An optimizer over named parameters, sharded or not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from shardkeep.errors import InvalidError
from shardkeep.sharded.optimizer import ShardedOptimizer, named_params_with_sharded_tensor
from shardkeep.testing.layout_strategies import distinct_values
from shardkeep.testing.thread_ranks import ThreadRanks
from tests.sharded.making import chunks, parameter, sharded, whole

FULL = distinct_values((5, 3))
SPEC = chunks([0, 2])


def stepped(optimizer: Any, weight: Any, bias: Any, grads: list[Any]) -> None:
    for grad in grads:
        weight.grad, bias.grad = grad, torch.ones(2)
        optimizer.step()
        optimizer.zero_grad()
        assert weight.grad is None


def test_sharded_and_plain_parameters_step_as_whole_ones(three: ThreadRanks):
    grads = [torch.sin(FULL + step) for step in range(3)]

    def act(rank, group):
        weight, bias = parameter(sharded(FULL, SPEC, group)), parameter(torch.zeros(2))
        optimizer = ShardedOptimizer({"w": weight, "b": bias}, torch.optim.AdamW, lr=0.1)
        stepped(optimizer, weight, bias, [sharded(grad, SPEC, group) for grad in grads])
        return weight.full_tensor(), bias

    plain, plain_bias = parameter(FULL.clone()), parameter(torch.zeros(2))
    stepped(torch.optim.AdamW([plain, plain_bias], lr=0.1), plain, plain_bias, grads)
    for weight, bias in three.run(act):
        assert torch.equal(weight, plain)
        assert torch.equal(bias, plain_bias)


def test_the_state_is_by_name_and_loads_again():
    weight, spec = parameter(sharded(FULL, chunks([0, 0]))), chunks([0, 0])
    first = ShardedOptimizer({"w": weight}, torch.optim.AdamW, lr=0.5)
    weight.grad = sharded(FULL, spec)
    first.step()
    second = ShardedOptimizer({"w": weight}, torch.optim.AdamW, lr=0.1)

    state = first.state_dict()
    second.load_state_dict(state)

    assert list(state["state"]) == ["w"]
    torch.testing.assert_close(whole(second.state_dict()["state"]["w"]["exp_avg"]), FULL * 0.1)
    assert second.param_groups[0]["lr"] == 0.5


def test_unknown_names_are_refused():
    optimizer = ShardedOptimizer({"w": parameter(torch.zeros(2))}, torch.optim.SGD, 0.1)

    with pytest.raises(InvalidError, match=r"parameters that the optimizer lacks: \['x'\]"):
        optimizer.load_state_dict({"state": {"x": {}}, "param_groups": [{}]})


def test_an_optimizer_needs_a_parameter():
    with pytest.raises(InvalidError, match="needs at least one parameter"):
        ShardedOptimizer({}, torch.optim.SGD, 0.1)


def test_parameters_and_sharded_attributes_are_named_once():
    model = nn.Sequential(nn.Linear(3, 5, bias=False))
    inner: Any = model[0]
    inner.table = sharded(FULL, chunks([0]))
    inner.same_table = inner.table

    named = dict(named_params_with_sharded_tensor(model, prefix="m"))

    assert named == {"m.0.weight": inner.weight, "m.0.table": inner.table}
    assert list(named_params_with_sharded_tensor(model, recurse=False)) == []

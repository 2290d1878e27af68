"""Sharded parameters in modules: state dicts, hooks, conversion, and sharding by plan."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from shardkeep import sharded as sk
from shardkeep.errors import InvalidError, RankInputError
from shardkeep.sharded import (
    ChunkShardingSpec,
    ShardedTensor,
    Sharder,
    ShardingPlan,
    ShardingPlanner,
    pre_load_state_dict_hook,
    shard_module,
    shard_parameter,
    state_dict_hook,
)
from shardkeep.testing.layout_strategies import distinct_values
from shardkeep.testing.thread_ranks import ThreadRanks
from tests.sharded.making import chunks, is_parameter, parameter, pieces, sharded, whole

FULL = distinct_values((5, 3))
ALONE = chunks([0, 0])


def linear(scale: float = 1.0) -> Any:
    """A layer of 5 x 3 distinct weights."""
    layer = nn.Linear(3, 5)
    with torch.no_grad():
        layer.weight.copy_(FULL * scale)
        layer.bias.fill_(scale)
    return layer


def sharded_linear(scale: float = 1.0, group: object = None, spec: Any = ALONE) -> Any:
    layer = linear(scale)
    layer.weight = nn.Parameter(sharded(FULL * scale, spec, group))
    return layer


def test_a_sharded_tensor_can_be_a_parameter():
    layer = sharded_linear()

    assert isinstance(layer.weight, nn.Parameter)
    assert isinstance(layer.weight, ShardedTensor)
    assert layer.weight.requires_grad
    assert [name for name, _ in layer.named_parameters()] == ["weight", "bias"]
    assert sum(p.numel() for p in layer.parameters()) == 20


def test_a_parameter_shares_memory_with_the_tensor_it_is_made_of():
    tensor = sharded(FULL, ALONE)

    weight = nn.Parameter(tensor)

    assert pieces(weight)[0].data_ptr() == pieces(tensor)[0].data_ptr()
    assert not tensor.requires_grad


@pytest.mark.parametrize("assign", [False, True])
def test_a_state_dict_loads_into_another_module(three: ThreadRanks, assign: bool):
    spec = chunks([0, 2])

    def act(rank, group):
        source, target = sharded_linear(2.0, group, spec), sharded_linear(1.0, group, spec)
        state = source.state_dict()
        assert not state["weight"].requires_grad
        report = target.load_state_dict(state, strict=True, assign=assign)
        assert not report.missing_keys
        assert not report.unexpected_keys
        assert is_parameter(target.weight)
        return target.weight.full_tensor(), target.bias

    for weight, bias in three.run(act):
        assert torch.equal(weight, FULL * 2)
        assert bias.tolist() == [2.0] * 5


def test_a_state_dict_loads_with_swapped_tensors():
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        target = sharded_linear()
        kept = target.weight
        target.load_state_dict(sharded_linear(2.0).state_dict())
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)

    assert target.weight is kept
    assert torch.equal(whole(target.weight), FULL * 2)


def test_a_plain_state_dict_loads_into_a_sharded_module():
    target = sharded_linear()
    target.load_state_dict(linear(3.0).state_dict())

    assert torch.equal(whole(target.weight), FULL * 3)


def test_a_state_dict_of_another_layout_or_size_is_refused():
    other = sharded_linear(spec=chunks([0, 0], dim=1))
    with pytest.raises(RuntimeError, match=r"(?s)\"weight\".*equally laid-out"):
        sharded_linear().load_state_dict(other.state_dict())
    small = {"weight": torch.zeros(5, 2), "bias": torch.zeros(5)}
    with pytest.raises(RuntimeError, match="size mismatch for weight"):
        sharded_linear().load_state_dict(small)


def test_missing_and_unexpected_keys_are_told():
    target, state = sharded_linear(), sharded_linear().state_dict()
    state["extra"] = state.pop("weight")

    with pytest.raises(
        RuntimeError, match=r"(?s)Missing key.*\"weight\".*Unexpected key.*\"extra\""
    ):
        target.load_state_dict(state)
    report = target.load_state_dict(state, strict=False)
    assert (report.missing_keys, report.unexpected_keys) == (["weight"], ["extra"])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_module_is_converted_with_its_shards(dtype: torch.dtype):
    layer = sharded_linear()

    layer.to(dtype)

    assert layer.weight.dtype == dtype
    assert {piece.dtype for piece in pieces(layer.weight)} == {dtype}
    assert torch.equal(whole(layer.weight), FULL.to(dtype))
    assert layer.weight.requires_grad


def test_a_module_is_moved_and_allocated_anew():
    layer = sharded_linear().to("meta")
    assert {piece.device.type for piece in pieces(layer.weight)} == {"meta"}

    layer.to_empty(device="cpu")

    assert {piece.device.type for piece in pieces(layer.weight)} == {"cpu"}
    assert isinstance(layer.weight, nn.Parameter)


def test_a_module_is_copied_and_frozen_with_its_shards():
    layer = sharded_linear()
    twin = copy.deepcopy(layer).requires_grad_(False)

    assert pieces(twin.weight)[0].data_ptr() != pieces(layer.weight)[0].data_ptr()
    assert torch.equal(whole(twin.weight), FULL)
    assert not any(piece.requires_grad for piece in pieces(twin.weight))
    assert all(piece.requires_grad for piece in pieces(layer.weight))


class WithAttribute(nn.Module):
    """A sharded tensor as a plain attribute, at two depths."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.table = sharded(FULL * scale, ALONE)
        self.inner = nn.Module()
        self.inner.table = sharded(FULL * scale * 10, ALONE)  # type: ignore[assignment]
        self.bias = nn.Parameter(torch.full((2,), scale))
        self.register_state_dict_post_hook(state_dict_hook)
        self.register_load_state_dict_pre_hook(pre_load_state_dict_hook)


def test_hooks_bring_sharded_attributes_into_a_state_dict_and_back():
    source, target = WithAttribute(2.0), WithAttribute(1.0)

    state = source.state_dict()
    assert sorted(state) == ["bias", "inner.table", "table"]
    target.load_state_dict(state, strict=True)

    assert target.table is source.table
    assert torch.equal(whole(target.inner.table), FULL * 20)  # type: ignore[arg-type]
    assert target.bias.tolist() == [2.0, 2.0]
    assert sorted(state) == ["bias", "inner.table", "table"]


def test_hooks_of_a_submodule_know_their_prefix():
    source, target = nn.Sequential(WithAttribute(2.0)), nn.Sequential(WithAttribute(1.0))

    state = source.state_dict(prefix="model.")
    assert "model.0.inner.table" in state
    target.load_state_dict({key.removeprefix("model."): value for key, value in state.items()})

    assert torch.equal(whole(target[0].table), FULL * 2)  # type: ignore[arg-type]


STEPS: dict[str, Any] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd momentum": lambda p: torch.optim.SGD(
        p, lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True
    ),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
    "adamw amsgrad": lambda p: torch.optim.AdamW(p, lr=0.1, amsgrad=True, maximize=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.1),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.5, centered=True),
}


@pytest.mark.parametrize("name", STEPS)
def test_an_optimizer_steps_as_on_the_whole_tensor(three: ThreadRanks, name: str):
    spec = chunks([0, 2])
    grads = [torch.sin(FULL + step) for step in range(3)]

    def act(rank, group):
        weight = parameter(sharded(FULL, spec, group))
        optimizer = STEPS[name]([weight])
        for grad in grads:
            weight.grad = sharded(grad, spec, group)
            optimizer.step()
            optimizer.zero_grad()
        return weight.full_tensor()

    plain = nn.Parameter(FULL.clone())
    optimizer = STEPS[name]([plain])
    for grad in grads:
        plain.grad = grad.clone()
        optimizer.step()
    for found in three.run(act):
        assert torch.equal(found, plain)


def test_the_state_of_an_optimizer_is_sharded_and_loads(three: ThreadRanks):
    spec = chunks([0, 2])

    def act(rank, group):
        weight = parameter(sharded(FULL, spec, group))
        first = torch.optim.AdamW([weight], lr=0.1)
        weight.grad = sharded(FULL, spec, group)
        first.step()
        second = torch.optim.AdamW([weight], lr=0.1)
        second.load_state_dict(first.state_dict())
        moments = [second.state[weight][key] for key in ("exp_avg", "exp_avg_sq")]
        assert all(isinstance(moment, ShardedTensor) for moment in moments)
        return [moment.full_tensor() for moment in moments]

    for average, square in three.run(act):
        torch.testing.assert_close(average, FULL * 0.1)
        torch.testing.assert_close(square, FULL**2 * 0.001)


def test_gradients_are_zeroed_in_place():
    weight = parameter(sharded(FULL, ALONE))
    grad = weight.grad = sharded(FULL, ALONE)

    torch.optim.SGD([weight], lr=0.1).zero_grad(set_to_none=False)

    assert weight.grad is grad
    assert whole(grad).count_nonzero() == 0


def test_shard_parameter_replaces_a_parameter(three: ThreadRanks):
    def act(rank, group):
        layer = linear(1.0 + rank)
        layer.bias.requires_grad_(False)
        shard_parameter(layer, "weight", chunks([2, 1]), 1, group)
        shard_parameter(layer, "bias", chunks([2, 1]), src_rank=2, process_group=group)
        assert is_parameter(layer.weight)
        assert layer.weight.requires_grad
        assert not layer.bias.requires_grad
        return layer.weight.full_tensor(), layer.bias.full_tensor()

    for weight, bias in three.run(act):
        assert torch.equal(weight, FULL * 2)
        assert bias.tolist() == [3.0] * 5


def test_shard_parameter_refuses_what_is_not_there_or_no_tensor():
    layer = linear()

    with pytest.raises(AttributeError, match="Linear has no attribute 'wait'"):
        shard_parameter(layer, "wait", ALONE)
    with pytest.raises(InvalidError, match="'in_features' is a int; only tensors can be sharded"):
        shard_parameter(layer, "in_features", ALONE)
    with pytest.raises(InvalidError, match="expected a ShardingSpec, got str"):
        shard_parameter(layer, "weight", "rank:0/cpu")  # type: ignore[arg-type]
    shard_parameter(layer, "weight", ALONE)
    with pytest.raises(InvalidError, match="only a plain tensor can be sharded, got ShardedTensor"):
        shard_parameter(layer, "weight", ALONE)


def test_shard_parameter_shards_what_is_not_contiguous():
    layer = nn.Module()
    layer.weight = nn.Parameter(FULL.t())

    shard_parameter(layer, "weight", ALONE)

    assert torch.equal(whole(layer.weight), FULL.t())


class Doubled(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner


class Doubler(Sharder):
    def shard(self, module: nn.Module) -> nn.Module:
        return Doubled(module)


class Model(nn.Module):
    emb1: Any
    emb10: Any
    head: Any

    def __init__(self) -> None:
        super().__init__()
        self.emb1, self.emb10, self.head = linear(1.0), linear(10.0), nn.Sequential(linear(3.0))


def test_a_sharders_module_takes_the_place_of_the_old_one():
    model = Model()
    old = model.emb1

    shard_module(model, ShardingPlan({"emb1": Doubler(), "head.0": Doubler()}))

    assert isinstance(model.emb1, Doubled)
    assert model.emb1.inner is old
    assert isinstance(model.head[0], Doubled)
    assert isinstance(model.emb10, nn.Linear)
    assert not hasattr(model, "mod_name")


def test_emb1_is_not_a_prefix_of_emb10():
    model = Model()

    shard_module(model, ShardingPlan({"emb1": Doubler(), "emb10.weight": ALONE}))

    assert isinstance(model.emb1, Doubled)
    assert torch.equal(whole(model.emb10.weight), FULL * 10)


def test_parameters_are_sharded_at_their_paths(three: ThreadRanks):
    def act(rank, group):
        model = Model()
        plan = ShardingPlan({"head.0.weight": chunks([2, 0]), "emb1.bias": chunks([1])})
        shard_module(model, plan, src_rank=1, process_group=group)
        return model.head[0].weight.full_tensor(), len(model.emb1.bias.local_shards())

    found = three.run(act)

    assert all(torch.equal(weight, FULL * 3) for weight, _ in found)
    assert [count for _, count in found] == [0, 1, 0]


BAD_PLANS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "type": (
        {"emb1": "rows"},
        TypeError,
        "plan for 'emb1' is a ShardingSpec or a Sharder, got str",
    ),
    "root": ({"": Doubler()}, KeyError, "a sharder's path must not be empty"),
    "both": (
        {"emb1": Doubler(), "emb1.weight": ALONE},
        RuntimeError,
        "'emb1.weight' is planned by itself, but also lies in 'emb1'",
    ),
    "no module": ({"nose": Doubler()}, AttributeError, "nose"),
    "no parameter": ({"emb1.wait": ALONE}, AttributeError, "Linear has no attribute 'wait'"),
    "no parent": ({"nose.weight": ALONE}, AttributeError, "nose"),
}


@pytest.mark.parametrize("name", BAD_PLANS)
def test_a_bad_plan_is_refused_before_anything_changes(name: str):
    plan, error, message = BAD_PLANS[name]
    model = Model()

    with pytest.raises(error, match=message):
        shard_module(model, ShardingPlan({"emb10.weight": ALONE, **plan}))
    assert not isinstance(model.emb10.weight, ShardedTensor)


def test_bad_output_plans_are_refused_before_anything_changes():
    model = Model()

    with pytest.raises(TypeError, match="the output plan for 'emb1' is a ShardingSpec, got 1"):
        shard_module(model, ShardingPlan({"emb10.weight": ALONE}, output_plan={"emb1": 1}))  # type: ignore[dict-item]
    with pytest.raises(AttributeError, match="nose"):
        shard_module(model, ShardingPlan({"emb10.weight": ALONE}, return_local_tensor=["nose"]))
    assert not isinstance(model.emb10.weight, ShardedTensor)


class Producer(nn.Module):
    """Its output is sharded."""

    def forward(self, tensor: ShardedTensor) -> torch.Tensor:
        return tensor * 2


def test_outputs_are_resharded_and_handed_on_as_local_tensors(three: ThreadRanks):
    full = distinct_values((3, 3))
    rows, columns = chunks([0, 1, 2]), chunks([2, 1, 0], dim=1)

    def act(rank, group):
        model = nn.Sequential(Producer(), Producer())
        plan = ShardingPlan({}, output_plan={"0": columns}, return_local_tensor=["1"])
        shard_module(model, plan, process_group=group)
        middle = model[0](sharded(full, rows, group))
        assert middle.sharding_spec() == columns
        return model(sharded(full, rows, group))

    for rank, local in enumerate(three.run(act)):
        # A sharded dim of one cell is squeezed away.
        assert local.tolist() == (full[:, 2 - rank] * 4).tolist()


def test_plain_outputs_pass_through():
    model = nn.Sequential(nn.Identity())
    shard_module(model, ShardingPlan({}, output_plan={"0": ALONE}, return_local_tensor=["0"]))

    assert model(FULL) is FULL


def test_a_local_output_of_several_cells_is_not_squeezed():
    model = nn.Sequential(Producer())
    shard_module(model, ShardingPlan({}, return_local_tensor=["0"]))

    assert torch.equal(model(sharded(FULL, chunks([0]))), FULL * 2)


def test_a_planner_makes_a_plan():
    class RowPlanner(ShardingPlanner):
        def build_plan(self, module: nn.Module) -> ShardingPlan:
            return ShardingPlan({name: ALONE for name, _ in module.named_parameters()})

    layer = linear()
    shard_module(layer, RowPlanner().build_plan(layer))

    assert torch.equal(whole(layer.weight), FULL)
    assert layer.bias.shape == (5,)


INITS: dict[str, Any] = {
    "uniform_": lambda t: nn.init.uniform_(t, 2.0, 3.0),
    "normal_": lambda t: nn.init.normal_(t, 100.0, 1.0),
    "kaiming_uniform_": nn.init.kaiming_uniform_,
    "kaiming_normal_": nn.init.kaiming_normal_,
    "xavier_uniform_": nn.init.xavier_uniform_,
    "xavier_normal_": nn.init.xavier_normal_,
    "trunc_normal_": lambda t: nn.init.trunc_normal_(t, 5.0, 1.0, 4.0, 6.0),
}


@pytest.mark.parametrize("name", INITS)
def test_init_fills_with_the_statistics_of_the_whole_tensor(name: str):
    torch.manual_seed(0)
    weight = parameter(sk.zeros(chunks([0, 0, 0]), 200, 50))
    plain = torch.zeros(200, 50)

    assert INITS[name](weight) is weight
    INITS[name](plain)

    filled = whole(weight)
    assert filled.mean().item() == pytest.approx(plain.mean().item(), abs=0.05)
    assert filled.std().item() == pytest.approx(plain.std().item(), rel=0.05)
    assert len(filled.unique()) > 9000


def test_init_fills_with_constants():
    weight = parameter(sk.empty(ALONE, 4, 3))

    assert whole(nn.init.constant_(weight, 2.5)).eq(2.5).all()
    assert whole(nn.init.zeros_(weight)).eq(0).all()
    assert whole(nn.init.ones_(weight)).eq(1).all()
    assert weight.requires_grad


def test_a_plan_that_one_rank_gets_wrong_raises_on_all(three: ThreadRanks):
    def act(rank, group):
        plan = {"emb1.weight": chunks([0]), **({"emb10": Doubler(), "x": 1} if rank == 1 else {})}
        shard_module(Model(), ShardingPlan(plan), process_group=group)  # type: ignore[arg-type]

    found = three.errors(act)

    assert isinstance(found[0], RankInputError)
    assert isinstance(found[1], TypeError)
    assert isinstance(found[2], RankInputError)
    for error in found:
        assert "shard_module failed on rank 1" in str(error)
        assert "plan for 'x' is a ShardingSpec or a Sharder, got int" in str(error)


def test_chunk_spec_of_a_parameter_is_kept():
    layer = linear()
    shard_parameter(layer, "weight", ALONE)

    assert isinstance(layer.weight.sharding_spec(), ChunkShardingSpec)
    assert layer.weight.sharding_spec() == ALONE

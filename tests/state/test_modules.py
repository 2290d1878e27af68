"""Modules are kept by the names they have without wrappers, and stay the objects they are."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import shardkeep as sk
from shardkeep.state.modules import parameter_names, plain_name


class Block(nn.Module):
    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.inner(x))


class Model(nn.Module):
    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(3, 2)
        self.register_buffer("scale", torch.rand(2))
        self.register_buffer("passing", torch.rand(2), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@pytest.fixture
def one_rank() -> Iterator[None]:
    """A process group of this process alone."""
    store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def compiled(module: nn.Module) -> Any:
    """Wrapped only: nothing is compiled before the first call."""
    return torch.compile(module, backend="eager")


def checkpointed(model: Any) -> Any:
    model.blocks[0] = checkpoint_wrapper(model.blocks[0])
    model.blocks[1].inner = checkpoint_wrapper(model.blocks[1].inner)
    return model


def as_trained(model: Model) -> nn.Module:
    """Activation checkpointing, then compilation, of each block; fully sharded around both."""
    mesh = init_device_mesh("cpu", (1,))
    for number, block in enumerate(model.blocks):
        model.blocks[number] = compiled(checkpoint_wrapper(block))
        fully_shard(model.blocks[number], mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


WRAPPERS = {
    "ddp": DistributedDataParallel,
    "data_parallel": nn.DataParallel,
    "compiled": compiled,
    "checkpointed": checkpointed,
    "checkpointed_root": checkpoint_wrapper,
    "compiled_ddp": lambda model: compiled(DistributedDataParallel(model)),
    "ddp_compiled": lambda model: DistributedDataParallel(compiled(model)),
    "ddp_checkpointed": lambda model: DistributedDataParallel(checkpointed(model)),
    "compiled_checkpointed_root": lambda model: compiled(checkpoint_wrapper(model)),
    "as_trained": as_trained,
}
WRAPPED = pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)


def whole(module: nn.Module) -> dict[str, torch.Tensor]:
    """By plain name, everything that a state dict has, gathered and copied."""
    found: dict[str, torch.Tensor] = {}
    for name, value in module.state_dict().items():
        full = value.full_tensor() if hasattr(value, "full_tensor") else value
        found[plain_name(module, name)] = full.detach().clone()
    return found


def assert_same_state(found: nn.Module, expected: nn.Module) -> None:
    a, b = whole(found), whole(expected)
    assert list(a) == list(b)
    for name in a:
        assert torch.equal(a[name], b[name]), name


@WRAPPED
def test_a_wrapped_module_is_saved_under_its_plain_names(one_rank, tmp_path, wrap):
    sk.save({"model": wrap(Model())}, tmp_path / "c")

    assert list(sk.load(tmp_path / "c")["model"]) == list(Model().state_dict())


@WRAPPED
def test_saved_wrapped_and_loaded_plain(one_rank, tmp_path, wrap):
    model = Model(seed=1)
    sk.save({"model": wrap(model)}, tmp_path / "c")

    fresh: Any = Model(seed=2)
    sk.load(tmp_path / "c", {"model": fresh})

    assert_same_state(fresh, Model(seed=1))


@WRAPPED
def test_saved_plain_and_loaded_wrapped(one_rank, tmp_path, wrap):
    sk.save({"model": Model(seed=1)}, tmp_path / "c")

    model = Model(seed=2)
    wrapped = wrap(model)
    sk.load(tmp_path / "c", {"model": wrapped})

    assert_same_state(wrapped, Model(seed=1))


@WRAPPED
def test_parameters_have_the_names_that_they_are_saved_under(one_rank, wrap):
    expected = [name for name, _ in Model().named_parameters()]

    found = parameter_names(wrap(Model()))

    assert [name for (name,) in found.values()] == expected


def test_names_that_look_like_a_wrapper_are_kept():
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(1, 1)
            self._orig_mod = nn.Linear(1, 1, bias=False)

    names = list(Odd().state_dict())

    assert [plain_name(Odd(), name) for name in names] == names
    wrapped = nn.DataParallel(Odd())
    assert [plain_name(wrapped, name) for name in wrapped.state_dict()] == names


def test_a_clash_of_plain_names_is_refused(tmp_path):
    class Both(nn.DataParallel):
        """A wrapper with a parameter of its own, which has the name of one within."""

        def __init__(self) -> None:
            super().__init__(nn.Linear(1, 1))
            self.weight = nn.Parameter(torch.zeros(1))

    with pytest.raises(sk.ConflictError, match=r"'weight' and 'module.weight' .* rename"):
        sk.save({"model": Both()}, tmp_path / "c")


def test_buffers_are_filled_where_they_are_and_passing_ones_left_alone(tmp_path):
    sk.save({"model": Model(seed=1)}, tmp_path / "c")
    fresh: Any = Model(seed=2)
    passing, scale, counted = fresh.passing.clone(), fresh.scale, fresh.blocks[0].norm.running_mean

    sk.load(tmp_path / "c", {"model": fresh})

    assert torch.equal(fresh.passing, passing)
    assert fresh.scale is scale
    assert fresh.blocks[0].norm.running_mean is counted
    assert torch.equal(scale, Model(seed=1).state_dict()["scale"])


# Tied weights


def tied(seed: int = 0, device: str = "cpu") -> Any:
    torch.manual_seed(seed)
    with torch.device(device):
        model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    return model


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_tied_weights_are_saved_once_and_stay_tied(tmp_path, device):
    saved = tied(seed=1)
    sk.save({"model": saved}, tmp_path / "c")

    fresh = tied(seed=2, device=device)
    sk.load(tmp_path / "c", {"model": fresh})

    with sk.open(tmp_path / "c") as checkpoint:
        assert sorted(checkpoint) == ["model.0.bias", "model.0.weight", "model.2.bias"]
    assert fresh[2].weight is fresh[0].weight
    assert_same_state(fresh, saved)


def test_all_names_of_a_tied_parameter_are_known():
    model = tied()

    assert parameter_names(model)[model[0].weight] == ["0.weight", "2.weight"]


# Extra state


class Counting(nn.Module):
    """Makes what it keeps anew for each state dict, as modules with pickled extra state do."""

    def __init__(self, state: Any = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(4.0))
        self.state = state
        self.times_set = 0

    def get_extra_state(self) -> Any:
        return self.state.clone() if isinstance(self.state, torch.Tensor) else self.state

    def set_extra_state(self, state: Any) -> None:
        self.state = state
        self.times_set += 1


def loaded_extra(tmp_path: Any, saved: Any, before: Any, **options: Any) -> Any:
    sk.save({"model": nn.DataParallel(nn.Sequential(Counting(saved)))}, tmp_path / "c")
    fresh = nn.Sequential(Counting(before))
    sk.load(tmp_path / "c", {"model": fresh}, **options)
    return fresh


@pytest.mark.parametrize("before", [5, None, {"n": 1}, torch.zeros(7)])
def test_extra_state_of_values_comes_back_whatever_it_was_before(tmp_path, before):
    fresh = loaded_extra(tmp_path, {"n": 3, "names": ["a", "b"], "none": None}, before)

    assert fresh[0].state == {"n": 3, "names": ["a", "b"], "none": None}
    assert fresh[0].times_set == 1


@pytest.mark.parametrize("before", [None, torch.zeros(4, dtype=torch.uint8), torch.zeros(2)])
def test_extra_state_that_is_a_tensor_is_set(tmp_path, before):
    fresh = loaded_extra(tmp_path, torch.tensor([1, 2, 3, 4], dtype=torch.uint8), before)

    assert fresh[0].state.tolist() == [1, 2, 3, 4]
    assert fresh[0].state.dtype == torch.uint8


def test_extra_state_that_is_not_asked_for_is_left_alone(tmp_path):
    fresh = loaded_extra(tmp_path, {"n": 3}, {"n": 1}, keys=["*weight"])

    assert fresh[0].state == {"n": 1}
    assert fresh[0].times_set == 0


def test_extra_state_that_was_not_saved_is_missing(tmp_path):
    sk.save({"model": nn.ParameterDict({"weight": nn.Parameter(torch.ones(4))})}, tmp_path / "c")
    fresh = Counting({"n": 1})

    with pytest.raises(sk.NotFoundError, match=r"not in the checkpoint: model\._extra_state"):
        sk.load(tmp_path / "c", {"model": fresh})
    sk.load(tmp_path / "c", {"model": fresh}, strict=False)

    assert fresh.state == {"n": 1}
    assert fresh.times_set == 0
    assert torch.equal(fresh.weight, torch.ones(4))


def test_extra_state_beside_parameters_on_meta(tmp_path):
    sk.save({"model": Counting({"n": 3})}, tmp_path / "c")
    with torch.device("meta"):
        fresh = Counting()

    sk.load(tmp_path / "c", {"model": fresh})

    assert fresh.state == {"n": 3}
    assert torch.equal(fresh.weight, torch.arange(4.0))


# The meta device


def on_meta(make: Any = Model) -> Any:
    with torch.device("meta"):
        return make()


def test_parameters_on_meta_get_memory_and_stay_the_same_objects(tmp_path):
    sk.save({"model": Model(seed=1)}, tmp_path / "c")
    fresh = on_meta()
    fresh.head.weight.requires_grad_(False)
    before = dict(fresh.named_parameters())

    sk.load(tmp_path / "c", {"model": fresh})

    assert_same_state(fresh, Model(seed=1))
    for name, parameter in fresh.named_parameters():
        assert parameter is before[name]
        assert type(parameter) is nn.Parameter
        assert parameter.requires_grad == (name != "head.weight")


def test_an_optimizer_made_before_the_load_trains_the_parameters_of_a_meta_model(tmp_path):
    model = Model(seed=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    sk.save({"model": model, "optim": optimizer}, tmp_path / "c")
    fresh = on_meta()
    late = torch.optim.SGD(fresh.parameters(), lr=0.1)

    sk.load(tmp_path / "c", {"model": fresh, "optim": late})
    for one, its in ((model, optimizer), (fresh, late)):
        for parameter in one.parameters():
            parameter.grad = torch.full_like(parameter, 2.0)
        its.step()

    assert_same_state(fresh, model)


def test_a_part_of_a_meta_model_gets_memory_and_the_rest_stays_there(tmp_path):
    sk.save({"model": Model(seed=1)}, tmp_path / "c")
    fresh = on_meta()

    sk.load(tmp_path / "c", {"model": fresh}, keys=["model.head.*"])

    assert torch.equal(fresh.head.weight, Model(seed=1).head.weight)
    assert fresh.blocks[0].inner.weight.is_meta
    sk.load(tmp_path / "c", {"model": fresh})
    assert_same_state(fresh, Model(seed=1))


def test_what_has_memory_in_a_meta_model_is_filled_there(tmp_path):
    sk.save({"model": Model(seed=1)}, tmp_path / "c")
    fresh = on_meta()
    fresh.head = nn.Linear(3, 2)
    place = fresh.head.weight.data_ptr()

    sk.load(tmp_path / "c", {"model": fresh})

    assert fresh.head.weight.data_ptr() == place
    assert_same_state(fresh, Model(seed=1))


def test_the_way_modules_are_converted_is_what_it_was_before(tmp_path):
    sk.save({"model": Model(seed=1)}, tmp_path / "c")

    sk.load(tmp_path / "c", {"model": on_meta()})

    assert not torch.__future__.get_swap_module_params_on_conversion()


@pytest.mark.parametrize("make", [partial(nn.BatchNorm1d, 3), partial(nn.LayerNorm, 3)])
def test_a_module_may_be_the_whole_state(tmp_path, make):
    saved, fresh = make(), make()
    nn.init.uniform_(saved.weight)
    sk.save(saved, tmp_path / "c")

    sk.load(tmp_path / "c", fresh)

    assert_same_state(fresh, saved)


def test_a_module_trains_on_after_a_load_between_forward_and_backward_passes(one_rank, tmp_path):
    """Autograd and DDP hold on to parameters that were used once."""
    model = DistributedDataParallel(Model(seed=1))
    model(torch.rand(4, 3)).sum().backward()
    sk.save({"model": model}, tmp_path / "c")
    kept = whole(model)

    sk.load(tmp_path / "c", {"model": model})
    model(torch.rand(4, 3)).sum().backward()

    assert torch.equal(whole(model)["head.weight"], kept["head.weight"])

"""Do functions reach every tensor, and does a companion that does not fit always say so?"""

import io
from collections import OrderedDict
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.tensor import Partial, Replicate, Shard

from shardkeep.errors import CompanionMismatch, InvalidError
from shardkeep.sharded.leaves import local_tensors
from shardkeep.state.iterate import iterate_state_dict
from tests.state.fake_world import dtensor, numbers, sharded, shardless, torch_chunks
from tests.state.trees import Pair, assert_same_tree

# PyTorch warns at every use of its own ShardedTensor.
pytestmark = pytest.mark.filterwarnings("ignore:Please use DTensor:FutureWarning")


def same(leaf: Any, *_: Any) -> Any:
    return leaf


def iterate(tree: Any, companion: Any = None, *, fn: Any = same, **options: Any) -> Any:
    return iterate_state_dict(tree, fn, fn, fn, companion_obj=companion, **options)


@pytest.mark.usefixtures("rank_one_of_four")
def test_each_kind_of_tensor_goes_to_its_function():
    tree = {
        "t": numbers(2),
        "d": dtensor(numbers(2)),
        "s": [sharded(numbers(2)), shardless(4)],
        "f": torch_chunks(numbers(2)),
    }
    fns = [lambda *_, name=name: name for name in ("sharded", "dtensor", "tensor")]
    assert iterate_state_dict(tree, *fns) == {
        "t": "tensor",
        "d": "dtensor",
        "s": ["sharded", "sharded"],
        "f": "sharded",
    }


def test_functions_get_the_leaf_the_group_the_device_and_the_companion():
    leaf, twin, device = numbers(2), numbers(2), torch.device("cpu")
    seen: list[Any] = []

    def record(*arguments: Any) -> Any:
        seen.append(arguments)
        return None

    iterate({"a": leaf}, {"a": twin}, fn=record, pg=None, device=device)
    iterate({"a": leaf}, fn=record)
    assert [[id(x) for x in call] for call in seen] == [
        [id(leaf), id(None), id(device), id(twin)],
        [id(leaf), id(None), id(None), id(None)],
    ]


def test_containers_keep_their_types():
    tree = OrderedDict(a=Pair(1, [2, ()]), b={3: {}, "3": None})
    assert_same_tree(iterate(tree), tree)


PLAIN = [None, True, 2**80, 0.5, 1j, "x", b"y", torch.float32, torch.device("cpu")]
PLAIN += [torch.Size([2]), np.float32(1.5), np.bool_(True), io.BytesIO(b"z")]


@pytest.mark.parametrize("value", PLAIN, ids=lambda value: type(value).__name__)
def test_plain_values_are_kept(value):
    assert iterate({"a": value})["a"] is value


@pytest.mark.parametrize("value", [{1, 2}, Fraction(1, 2), np.ones(2), object(), range(3)])
def test_other_values_are_refused_by_path_and_type(value):
    message = rf"'a\.1' is a \w+\.{type(value).__qualname__}, which is neither"
    with pytest.raises(ValueError, match=message):
        iterate({"a": [0, value]})


def test_other_values_are_refused_before_a_function_is_called():
    calls: list[Any] = []
    with pytest.raises(InvalidError, match=r"'z' is a builtins.set"):
        iterate({"a": numbers(1), "z": {1}}, fn=lambda *x: calls.append(x))
    assert not calls


def test_without_type_check_other_values_are_deep_copied():
    tree = {"set": {1, 2}, "array": np.arange(3)}
    copy = iterate(tree, type_check=False)
    assert copy["set"] == {1, 2}
    assert copy["set"] is not tree["set"]
    assert not np.shares_memory(copy["array"], tree["array"])


def test_values_that_cannot_be_copied_are_named():
    with pytest.raises(InvalidError, match=r"'a' is a generator, which cannot be copied"):
        iterate({"a": (x for x in "x")}, type_check=False)


def test_results_are_copied_into_the_companion():
    twin = {"a": torch.zeros(2), "b": [torch.zeros(1, dtype=torch.int64)], "c": 0}
    result = iterate({"a": numbers(2, start=5), "b": (torch.tensor([7]),), "c": 3}, twin)
    assert result["a"] is twin["a"]
    assert twin["a"].tolist() == [5, 6]
    assert twin["b"][0].tolist() == [7]
    assert (result["c"], twin["c"]) == (3, 0)
    assert type(result["b"]) is tuple


@pytest.mark.usefixtures("rank_one_of_four")
@pytest.mark.parametrize("make", [dtensor, sharded, torch_chunks])
def test_what_this_rank_holds_is_copied_into_the_companion(make):
    twin = make(torch.zeros(2, 3))
    result = iterate({"x": make(numbers(2, 3, start=1))}, {"x": twin})
    assert result["x"] is twin
    assert torch.equal(local_tensors(twin)[0], numbers(2, 3, start=1))


@pytest.mark.usefixtures("rank_one_of_four")
def test_a_function_may_change_the_kind_to_that_of_the_companion():
    twin = torch.zeros(2)
    iterate({"x": dtensor(numbers(2, start=3))}, {"x": twin}, fn=lambda x, *_: x.to_local())
    assert twin.tolist() == [3, 4]


def test_a_companion_that_requires_grad_is_filled():
    twin = torch.nn.Parameter(torch.zeros(2))
    iterate({"x": torch.nn.Parameter(numbers(2, start=3))}, {"x": twin})
    assert twin.tolist() == [3, 4]
    assert twin.requires_grad


MISMATCHES = [
    ({"a": {}}, {"a": 3}, r"'a' does not fit its companion: dict opposite int"),
    ({"a": {}}, {"a": None}, r"'a' .* dict opposite NoneType"),
    ({"a": {}}, {"a": []}, r"'a' .* dict opposite list"),
    ({"a": []}, {"a": {}}, r"'a' .* list opposite dict"),
    ({"a": 1}, {"a": [1]}, r"'a' .* int opposite list"),
    ({"a": {"b": 1}}, {"a": {"c": 1}}, r"'a' .* the companion has no 'b'"),
    ({"a": {}}, {"a": {"c": 1}}, r"'a' .* the companion alone has 'c'"),
    ({"a": {1: 0}}, {"a": {"1": 0}}, r"'a' .* the companion has no 1"),
    ({"a": [1, 2]}, {"a": (1,)}, r"'a' .* 2 elements opposite 1"),
    (5, {"a": 1}, r"the root .* int opposite dict"),
    ([numbers(2)], [None], r"'0' .* tensor opposite None, which does not mean 'no companion'"),
    ([numbers(2)], [3], r"'0' .* tensor opposite int"),
    ([3], [numbers(2)], r"'0' .* int opposite tensor"),
    ([None], [numbers(2)], r"'0' .* NoneType opposite tensor"),
    ([numbers(3)], [numbers(1)], r"'0' .* shape \(3,\) opposite \(1,\)"),
    ([numbers(1)], [numbers(3)], r"'0' .* shape \(1,\) opposite \(3,\)"),
    ([numbers(1)], [numbers(1).double()], r"'0' .* dtype torch.float32 opposite torch.float64"),
    ([numbers(1)], [numbers(1).to("meta")], r"'0' .* the companion is on the meta device"),
    ([numbers(1).to("meta")], [numbers(1)], r"'0' .* the source is on the meta device"),
]


@pytest.mark.parametrize(("tree", "companion", "message"), MISMATCHES, ids=range(len(MISMATCHES)))
def test_a_companion_that_does_not_fit_is_refused_by_place(tree, companion, message):
    with pytest.raises(CompanionMismatch, match=message):
        iterate(tree, companion)


@pytest.mark.usefixtures("rank_one_of_four")
def test_kinds_and_layouts_must_fit():
    with pytest.raises(CompanionMismatch, match=r"'x' .* DTensor opposite tensor"):
        iterate({"x": dtensor(numbers(2))}, {"x": numbers(8)})
    with pytest.raises(CompanionMismatch, match=r"'x' .* tensor opposite ShardedTensor"):
        iterate({"x": numbers(8)}, {"x": sharded(numbers(2))})
    with pytest.raises(CompanionMismatch, match=r"'x' .* in different ways"):
        iterate({"x": sharded(numbers(2))}, {"x": shardless(8)})
    columns = dtensor(numbers(8, 1), Shard(1))
    with pytest.raises(CompanionMismatch, match=r"'x' .* in different ways"):
        iterate({"x": dtensor(numbers(2, 4))}, {"x": columns})


@pytest.mark.usefixtures("rank_one_of_four")
def test_partial_dtensors_fit_each_other():
    partial = Partial()
    source, twin = dtensor(numbers(2, start=1), partial), dtensor(torch.zeros(2), partial)
    iterate([source], [twin])
    assert local_tensors(twin)[0].tolist() == [1, 2]
    with pytest.raises(CompanionMismatch, match="in different ways"):
        iterate([source], [dtensor(torch.zeros(2), Replicate())])


def test_structure_is_checked_before_a_function_is_called():
    calls: list[Any] = []
    with pytest.raises(CompanionMismatch, match=r"'1' .* int opposite dict"):
        iterate([numbers(1), 1], [numbers(1), {}], fn=lambda *x: calls.append(x))
    assert not calls


def test_cpu_offload_without_companion_returns_cpu_tensors_themselves():
    leaf = numbers(2)
    assert iterate([leaf], cpu_offload=True)[0] is leaf


def test_ranks_only_needs_a_group():
    with pytest.raises(ValueError, match=r"ranks_only needs torch.distributed"):
        iterate({}, ranks_only=(0,))


@pytest.mark.usefixtures("rank_one_of_four")
def test_a_rank_that_is_not_listed_runs_the_functions_and_gets_nothing():
    calls: list[Any] = []
    twin = torch.zeros(1)

    def record(leaf: Any, *_: Any) -> Any:
        calls.append(leaf)
        return leaf

    assert (
        iterate(OrderedDict(a=numbers(1, start=4)), {"a": twin}, fn=record, ranks_only=(0,)) == {}
    )
    assert iterate([numbers(1)], fn=record, ranks_only=(0, 2)) is None
    assert len(calls) == 2
    assert twin.item() == 0


@pytest.mark.usefixtures("rank_one_of_four")
def test_a_rank_that_is_listed_gets_the_tree():
    assert iterate({"a": 1}, ranks_only=(3, 1)) == {"a": 1}


@pytest.mark.usefixtures("rank_one_of_four")
def test_ranks_count_within_the_group():
    group = torch.distributed.new_group([1, 3])
    assert iterate({"a": 1}, ranks_only=(0,), pg=group) == {"a": 1}
    assert iterate({"a": 1}, ranks_only=(1,), pg=group) == {}


@pytest.mark.usefixtures("rank_one_of_four")
def test_ranks_that_do_not_exist_are_refused():
    with pytest.raises(InvalidError, match=r"names \[4, -1\], but the group's ranks are 0 to 3"):
        iterate({"a": 1}, ranks_only=(1, 4, -1))

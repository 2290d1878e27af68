"""Clones, views, deep copies, copies from others, and the way through pickle."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from shardkeep import sharded as sk
from shardkeep.boxes import Box
from shardkeep.errors import ConflictError, UnsupportedError
from shardkeep.sharded import ShardedTensor, load_with_process_group
from shardkeep.testing.layout_strategies import DTYPES, distinct_values, raw
from shardkeep.testing.thread_ranks import ThreadRanks
from tests.sharded.making import chunks, is_parameter, listed, parameter, pieces, sharded, whole

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf")

FULL = distinct_values((5, 3))
# The fourth chunk is empty.
SPEC = chunks([0, 0, 0, 0])


@pytest.fixture
def tensor() -> ShardedTensor:
    return sharded(FULL, SPEC)


def shares_memory(one: Any, other: Any) -> bool:
    return [p.data_ptr() for p in pieces(one)] == [p.data_ptr() for p in pieces(other)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_clone_has_the_values_and_memory_of_its_own(dtype: torch.dtype):
    full = distinct_values((5, 3), dtype)
    tensor = sharded(full, SPEC)

    made = tensor.clone()

    assert isinstance(made, ShardedTensor)
    assert raw(whole(made)).tolist() == raw(full).tolist()
    assert not shares_memory(made, tensor)
    assert made.sharding_spec() == SPEC


def test_a_rank_with_several_equal_empty_shards_is_cloned():
    """One row over four chunks of a rank: the last three records are equal."""
    tensor = sharded(distinct_values((1,)), SPEC)

    for made in (tensor.clone(), tensor.detach(), tensor.to(torch.int8), copy.deepcopy(tensor)):
        assert [list(piece.shape) for piece in pieces(made)] == [[1], [0], [0], [0]]


def test_a_detached_tensor_shares_memory(tensor: ShardedTensor):
    tensor.requires_grad_()

    made = tensor.detach()

    assert shares_memory(made, tensor)
    assert not made.requires_grad
    assert not any(piece.requires_grad for piece in pieces(made))
    assert tensor.requires_grad


def test_copies_of_a_tensor_without_local_shards_are_made(three: ThreadRanks):
    def act(rank, group):
        tensor = sharded(FULL, chunks([0, 2]), group)
        made = [tensor.clone(), tensor.detach(), copy.deepcopy(tensor)]
        return [(m.process_group is group, torch.equal(m.full_tensor(), FULL)) for m in made]

    assert three.run(act) == [[(True, True)] * 3] * 3


def test_a_deep_copy_has_memory_and_grad_of_its_own(tensor: ShardedTensor):
    weight = parameter(tensor)
    weight.grad = tensor.clone()
    weight.note = ["mark"]

    made: Any = copy.deepcopy(weight)

    assert is_parameter(made)
    assert issubclass(type(made), ShardedTensor)
    assert made.requires_grad
    assert not shares_memory(made, weight)
    assert torch.equal(whole(made), FULL)
    assert isinstance(made.grad, ShardedTensor)
    assert not shares_memory(made.grad, weight.grad)
    assert torch.equal(whole(made.grad), FULL)
    assert made.note == ["mark"]


def test_a_deep_copy_of_a_tree_keeps_ties(tensor: ShardedTensor):
    made = copy.deepcopy([tensor, tensor])

    assert made[0] is made[1]


def test_a_copy_from_a_sharded_tensor_takes_its_values(tensor: ShardedTensor):
    target = sk.zeros_like(tensor)

    assert target.copy_(tensor) is target
    assert torch.equal(whole(target), FULL)
    assert not shares_memory(target, tensor)


def test_a_copy_from_a_whole_tensor_takes_each_shards_box(three: ThreadRanks):
    spec = listed([(2, Box((0, 0), (5, 1))), (0, Box((0, 1), (2, 3))), (2, Box((2, 1), (5, 3)))])

    def act(rank, group):
        target = sk.zeros(spec, 5, 3, process_group=group)
        assert target.copy_(FULL) is target
        return target.full_tensor()

    for found in three.run(act):
        assert torch.equal(found, FULL)


def test_a_copy_converts(tensor: ShardedTensor):
    target = sk.zeros_like(tensor, dtype=torch.int32)

    assert torch.equal(whole(target.copy_(tensor)), FULL.int())
    assert torch.equal(whole(target.copy_(FULL.double() + 1)), FULL.int() + 1)


def test_copies_of_0_dim_and_empty_tensors():
    point = sk.zeros(listed([(0, Box((), ()))]), [])
    none = sk.zeros(chunks([0]), 0, 3)

    assert whole(point.copy_(torch.tensor(7.0))).item() == 7.0
    assert none.copy_(torch.zeros(0, 3)) is none


def test_a_copy_needs_equal_sizes(tensor: ShardedTensor):
    with pytest.raises(ConflictError, match=r"copy_ needs equal sizes, got \[5, 3\] and \[3\]"):
        tensor.copy_(torch.zeros(3))


def test_a_copy_needs_equal_layouts(tensor: ShardedTensor):
    other = sharded(FULL, chunks([0, 0], dim=1))

    with pytest.raises(
        ConflictError, match=r"equally laid-out.*b = b.reshard\(a.sharding_spec\(\)"
    ):
        tensor.copy_(other)


def test_a_plain_tensor_cannot_take_a_sharded_one(tensor: ShardedTensor):
    with pytest.raises(UnsupportedError, match=r"use gather\(\) or full_tensor\(\)"):
        torch.zeros(5, 3).copy_(tensor)


def test_the_order_in_which_ranks_are_listed_does_not_keep_tensors_apart(three: ThreadRanks):
    rows = [(2, Box((0, 0), (2, 3))), (0, Box((2, 0), (5, 3)))]

    def act(rank, group):
        one, other = sharded(FULL, rows, group), sharded(FULL, rows[::-1], group)
        return (one + other).full_tensor().tolist()

    assert three.run(act) == [(FULL * 2).tolist()] * 3


def test_data_is_replaced_with_its_shards(tensor: ShardedTensor):
    weight = parameter(tensor)

    weight.data = tensor.detach().double() * 2

    assert weight.dtype == torch.float64
    assert {piece.dtype for piece in pieces(weight)} == {torch.float64}
    assert weight.metadata().tensor_properties.dtype == torch.float64
    assert torch.equal(whole(weight), FULL.double() * 2)
    assert weight.requires_grad
    assert all(piece.requires_grad for piece in pieces(weight))
    assert isinstance(weight, nn.Parameter)


def test_data_is_a_view(tensor: ShardedTensor):
    weight = parameter(tensor)

    assert shares_memory(weight.data, weight)
    assert not weight.data.requires_grad


def test_data_of_a_plain_tensor_is_refused(tensor: ShardedTensor):
    with pytest.raises(UnsupportedError, match="data of a ShardedTensor is a ShardedTensor"):
        tensor.data = FULL


def test_memory_is_shared_shard_by_shard(tensor: ShardedTensor):
    assert not tensor.is_shared()

    assert tensor.share_memory_() is tensor
    assert tensor.is_shared()
    assert all(piece.is_shared() for piece in pieces(tensor))
    assert torch.equal(whole(tensor), FULL)


@pytest.mark.parametrize(
    "set_grad", [lambda t: t.requires_grad_(), lambda t: setattr(t, "requires_grad", True)]
)
def test_requiring_grad_reaches_shards_and_metadata(tensor: ShardedTensor, set_grad):
    set_grad(tensor)

    assert tensor.requires_grad
    assert all(piece.requires_grad for piece in pieces(tensor))
    assert tensor.metadata().tensor_properties.requires_grad
    tensor.requires_grad_(False)
    assert not any(piece.requires_grad for piece in pieces(tensor))
    assert not tensor.metadata().tensor_properties.requires_grad


def test_integers_cannot_require_grad():
    with pytest.raises(RuntimeError, match="floating point"):
        sharded(FULL.int(), SPEC).requires_grad_()


def through_torch_save(value: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


def test_a_tensor_passes_through_torch_save(tensor: ShardedTensor):
    made = through_torch_save({"a": tensor.requires_grad_(), "b": tensor, "c": tensor.detach()})

    assert made["a"] is made["b"]
    assert made["a"].requires_grad
    assert not made["c"].requires_grad
    assert torch.equal(whole(made["a"]), FULL)
    assert made["a"].metadata() == tensor.metadata()
    assert made["a"].sharding_spec() == tensor.sharding_spec()
    assert shares_memory(made["a"], made["c"])


def test_a_parameter_comes_back_as_a_parameter(tensor: ShardedTensor):
    made = through_torch_save(nn.Parameter(tensor, requires_grad=False))

    assert isinstance(made, nn.Parameter)
    assert not made.requires_grad
    assert isinstance(through_torch_save(nn.Parameter(tensor)), nn.Parameter)
    assert not isinstance(through_torch_save(tensor), nn.Parameter)


def test_0_dim_and_empty_tensors_pass_through_pickle():
    point, none = sk.full(listed([(0, Box((), ()))]), [], 7.0), sk.zeros(chunks([0, 0]), 0, 3)

    assert whole(pickle.loads(pickle.dumps(point))).item() == 7.0
    assert pickle.loads(pickle.dumps(none)).shape == (0, 3)


def test_tensors_of_a_group_load_in_that_group(three: ThreadRanks):
    def act(rank, group):
        tensor = sharded(FULL, chunks([0, 2]), group)
        data = pickle.dumps(tensor)
        with load_with_process_group(group) as inside:
            assert inside is group
            made = pickle.loads(data)
        return made.process_group is group, torch.equal(made.full_tensor(), FULL)

    assert three.run(act) == [(True, True)] * 3


def test_groups_to_load_in_may_be_nested(two: ThreadRanks, three: ThreadRanks):
    def act(rank, group):
        data = pickle.dumps(sharded(FULL, chunks([0, 1]), group))
        with load_with_process_group("outer"):
            with load_with_process_group(group):
                inner = pickle.loads(data)
            with load_with_process_group(group):
                again = pickle.loads(data)
        return inner.process_group is again.process_group is group

    assert two.run(act) == [True] * 2


def test_shards_load_on_the_rank_that_they_were_saved_on(two: ThreadRanks, three: ThreadRanks):
    saved = three.run(lambda _, group: pickle.dumps(sharded(FULL, chunks([0, 2]), group)))

    def load(rank, group):
        with load_with_process_group(group):
            pickle.loads(saved[(rank + 1) % 3])

    messages = [str(error) for error in three.errors(load)]
    assert messages[0].startswith(
        "this ShardedTensor was saved with group rank 1, it is loaded with group rank 0"
    )
    for error in two.errors(lambda rank, group: _load(saved[rank], group)):
        assert isinstance(error, RuntimeError)
        assert "saved with group size 3, it is loaded with group size 2" in str(error)


def _load(data: bytes, group: object) -> object:
    with load_with_process_group(group):
        return pickle.loads(data)


def test_a_tensor_of_a_group_does_not_load_without_one(three: ThreadRanks):
    saved = three.run(lambda _, group: pickle.dumps(sharded(FULL, chunks([0, 2]), group)))

    with pytest.raises(
        RuntimeError, match="saved with group size 3, it is loaded with group size 1"
    ):
        pickle.loads(saved[0])


def test_weights_only_refuses_it(tensor: ShardedTensor):
    buffer = io.BytesIO()
    torch.save(tensor, buffer)
    buffer.seek(0)

    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        torch.load(buffer, weights_only=True)

"""Operations that users register, for all sharded tensors or for one kind of spec."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from shardkeep.boxes import Box
from shardkeep.errors import InvalidError, UnsupportedError
from shardkeep.sharded import (
    ChunkShardingSpec,
    EnumerableShardingSpec,
    ShardingSpec,
    custom_sharded_op_impl,
    custom_sharding_spec_op,
    functions,
)
from shardkeep.testing.layout_strategies import distinct_values
from shardkeep.testing.thread_ranks import ThreadRanks
from tests.sharded.making import chunks, listed, owners, sharded, whole

FULL = distinct_values((4, 3))


@pytest.fixture(autouse=True)
def _registered_ops_are_forgotten() -> Iterator[None]:
    user_ops, spec_ops = dict(functions._user_ops), dict(functions._spec_ops)
    yield
    functions._user_ops.clear()
    functions._user_ops.update(user_ops)
    functions._spec_ops.clear()
    functions._spec_ops.update(spec_ops)


def test_a_registered_function_serves_the_operation():
    tensor = sharded(FULL, chunks([0, 0]))
    seen = []

    @custom_sharded_op_impl(torch.asin)
    def impl(types, args, kwargs, process_group):
        seen.append((types, args, kwargs, process_group))
        return "served"

    assert torch.asin(tensor) == "served"
    assert seen == [((type(tensor),), (tensor,), {}, None)]


def test_a_registered_function_goes_before_our_own():
    @custom_sharded_op_impl(torch.Tensor.add)
    def impl(types, args, kwargs, process_group):
        return "mine"

    tensor = sharded(FULL, chunks([0, 0]))
    assert tensor.add(1) == "mine"
    assert torch.equal(whole(torch.add(tensor, 1)), FULL + 1)


def test_the_operation_may_be_one_that_is_not_supported_otherwise():
    @custom_sharded_op_impl(torch.nn.functional.linear)
    def impl(types, args, kwargs, process_group):
        x, weight = args[:2]
        return torch.nn.functional.linear(x, whole(weight))

    x = torch.ones(2, 3)
    found = torch.nn.functional.linear(x, sharded(FULL, chunks([0, 0])))
    assert torch.equal(found, x @ FULL.t())
    with pytest.raises(UnsupportedError, match="register an implementation with custom_sharded_op"):
        torch.matmul(x, sharded(FULL.t().contiguous(), chunks([0, 0])))


def test_keywords_and_nested_arguments_are_handed_on():
    tensor = sharded(FULL, chunks([0, 0]))

    @custom_sharded_op_impl(torch.cat)
    def impl(types, args, kwargs, process_group):
        return [whole(each).sum().item() for each in args[0]], kwargs

    assert torch.cat([tensor, tensor], dim=1) == ([FULL.sum().item()] * 2, {"dim": 1})


def test_the_group_of_the_tensor_is_handed_on(three: ThreadRanks):
    @custom_sharded_op_impl(torch.asin)
    def impl(types, args, kwargs, process_group):
        return process_group

    assert three.run(lambda _, g: torch.asin(sharded(FULL, chunks([0, 2]), g)) is g) == [True] * 3


def test_tensors_of_different_groups_are_refused(two: ThreadRanks, three: ThreadRanks):
    @custom_sharded_op_impl(torch.atan2)
    def impl(types, args, kwargs, process_group):
        return "served"

    one = two.run(lambda _, group: sharded(FULL, chunks([0, 1]), group))[0]
    other = three.run(lambda _, group: sharded(FULL, chunks([0, 1]), group))[0]

    assert torch.atan2(one, one) == "served"
    with pytest.raises(RuntimeError, match="must live in the same process group"):
        torch.atan2(one, other)


@pytest.mark.parametrize("impl", [lambda: 1, lambda a, b, c: 1, lambda a, b, c, d, e: 1])
def test_an_implementation_of_another_signature_is_refused(impl):
    with pytest.raises(TypeError, match=r"takes \(types, args, kwargs, process_group\), got"):
        custom_sharded_op_impl(torch.asin)(impl)
    with pytest.raises(TypeError, match=r"takes \(types, args, kwargs, process_group\), got"):
        custom_sharding_spec_op(ChunkShardingSpec, torch.asin)(impl)


def test_an_operation_needs_an_input():
    @custom_sharded_op_impl(torch.asin)
    def impl(types, args, kwargs, process_group):
        return "served"

    with pytest.raises(InvalidError, match="a sharded op needs at least one input"):
        functions._user_ops[torch.asin]((), (), {}, None)
    assert impl((), (), {}, None) == "served"


def test_an_operation_of_a_spec_serves_that_kind_alone():
    @custom_sharding_spec_op(ChunkShardingSpec, torch.asin)
    def impl(types, args, kwargs, process_group):
        return "chunks"

    spec = listed([(0, Box((0, 0), (2, 3))), (0, Box((2, 0), (4, 3)))])
    plain = sharded(FULL / 12, spec)
    plain.given_spec = spec
    assert torch.asin(sharded(FULL, chunks([0, 0]))) == "chunks"
    assert isinstance(plain.sharding_spec(), EnumerableShardingSpec)
    assert torch.equal(whole(torch.asin(plain)), torch.asin(FULL / 12))


def test_an_operation_for_all_goes_before_one_of_a_spec():
    @custom_sharding_spec_op(ChunkShardingSpec, torch.asin)
    def of_spec(types, args, kwargs, process_group):
        return "of the spec"

    @custom_sharded_op_impl(torch.asin)
    def for_all(types, args, kwargs, process_group):
        return "for all"

    assert torch.asin(sharded(FULL, chunks([0, 0]))) == "for all"


class Rows(ChunkShardingSpec):
    """A kind of chunks."""

    def __init__(self) -> None:
        super().__init__(0, owners([0, 0]))


def tensor_of(spec: ShardingSpec):
    made = sharded(FULL, spec)
    made.given_spec = spec
    return made


def test_a_kind_of_spec_inherits_the_operations_of_its_parent():
    @custom_sharding_spec_op(ChunkShardingSpec, torch.asin)
    def parent(types, args, kwargs, process_group):
        return "parent"

    assert torch.asin(tensor_of(Rows())) == "parent"

    @custom_sharding_spec_op(Rows, torch.asin)
    def child(types, args, kwargs, process_group):
        return "child"

    assert torch.asin(tensor_of(Rows())) == "child"
    assert torch.asin(tensor_of(chunks([0, 0]))) == "parent"


def test_two_kinds_of_the_same_name_are_kept_apart():
    def make() -> type[ChunkShardingSpec]:
        class Same(ChunkShardingSpec):
            pass

        return Same

    first, second = make(), make()
    assert first.__name__ == second.__name__

    @custom_sharding_spec_op(first, torch.asin)
    def of_first(types, args, kwargs, process_group):
        return "first"

    @custom_sharding_spec_op(second, torch.asin)
    def of_second(types, args, kwargs, process_group):
        return "second"

    assert torch.asin(tensor_of(first(0, owners([0, 0])))) == "first"
    assert torch.asin(tensor_of(second(0, owners([0, 0])))) == "second"

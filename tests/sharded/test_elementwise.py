"""Arithmetic shard by shard, compared with the same on the whole tensor."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st

from shardkeep import sharded as sk
from shardkeep.boxes import Box
from shardkeep.errors import ConflictError, UnsupportedError
from shardkeep.sharded import ShardedTensor
from shardkeep.testing.example_counts import examples
from shardkeep.testing.layout_strategies import distinct_values, owned_tilings, shapes
from shardkeep.testing.thread_ranks import ThreadRanks
from tests.sharded.making import chunks, listed, pieces, sharded, whole

A = distinct_values((5, 3)) / 8 - 1
B = torch.cos(A)
SPEC = chunks([0, 0, 0, 0])
HALF = torch.tensor(0.5)

BINARY: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "pow": lambda a, b: a.abs() ** b,
    "floor": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "alpha": lambda a, b: torch.add(a, b, alpha=3),
    "less": lambda a, b: a < b,
    "equal": lambda a, b: a == b,
    "maximum": torch.maximum,
    "max of two": torch.max,
    "min of two": torch.min,
    "where": lambda a, b: torch.where(a > b, a, b),
    "where not": lambda a, b: torch.where(a > 0.1, a, 0.0),
    "lerp": lambda a, b: torch.lerp(a, b, 0.25),
    "addcmul": lambda a, b: torch.addcmul(a, a, b, value=2.0),
    "addcdiv": lambda a, b: torch.addcdiv(a, a, b, value=2.0),
    "atan2": torch.atan2,
    "and": lambda a, b: (a > 0) & (b > 0),
    "chain": lambda a, b: ((a + b) * a - 2).clamp(-1, 1) / (b.abs() + 1),
}


@pytest.mark.parametrize("name", BINARY)
def test_two_tensors_are_combined_as_whole_ones_are(name: str):
    expected = BINARY[name](A, B)

    made = BINARY[name](sharded(A, SPEC), sharded(B, SPEC))

    assert isinstance(made, ShardedTensor)
    assert made.dtype == expected.dtype
    assert made.sharding_spec() == SPEC
    assert torch.equal(whole(made), expected)


UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "scalar right": lambda a: a * 2 + 1,
    "scalar left": lambda a: 2 - 3 / (a + 2),
    "power": lambda a: 2**a,
    "tensor right": lambda a: a * HALF,
    "tensor left": lambda a: HALF - a,
    "tensor of another dtype": lambda a: a * HALF.double(),
    "complex": lambda a: a * 2j,
    "neg": lambda a: -a,
    "abs": torch.abs,
    "exp": torch.exp,
    "sqrt": lambda a: a.abs().sqrt(),
    "sigmoid": torch.sigmoid,
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "hardswish": F.hardswish,
    "floor": lambda a: a // 0.3,
    "square": torch.square,
    "isfinite": torch.isfinite,
    "masked_fill": lambda a: a.masked_fill(a > 0, 5.0),
    "clamp": lambda a: a.clamp(min=-0.5, max=0.25),
    "isnan": torch.isnan,
    "not": lambda a: ~(a > 0),
    "round": torch.round,
    "sign": torch.sign,
    "nan_to_num": lambda a: (a / 0).nan_to_num(1.0, 2.0, 3.0),
    "fill": lambda a: torch.full_like(a, 4.0),
}


@pytest.mark.parametrize("name", UNARY)
def test_one_tensor_is_changed_as_a_whole_one_is(name: str):
    expected = UNARY[name](A)

    made = UNARY[name](sharded(A, SPEC))

    assert isinstance(made, ShardedTensor)
    assert made.dtype == expected.dtype
    assert torch.equal(whole(made), expected)


IN_PLACE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add_": lambda a, b: a.add_(b),
    "add_ alpha": lambda a, b: a.add_(b, alpha=-2),
    "mul_ scalar": lambda a, b: a.mul_(3),
    "mul_ 0-dim": lambda a, b: a.mul_(HALF),
    "div_": lambda a, b: a.div_(b),
    "addcmul_": lambda a, b: a.addcmul_(a, b, value=0.5),
    "addcdiv_": lambda a, b: a.addcdiv_(a, b, value=0.5),
    "lerp_": lambda a, b: a.lerp_(b, 0.25),
    "clamp_": lambda a, b: a.clamp_(-0.5, 0.5),
    "zero_": lambda a, b: a.zero_(),
    "fill_": lambda a, b: a.fill_(2.5),
    "fill_ 0-dim": lambda a, b: a.fill_(HALF),
    "sqrt_": lambda a, b: a.abs_().sqrt_(),
    "floor": lambda a, b: a.floor_divide_(b),
    "floor scalar": lambda a, b: a.floor_divide_(0.25),
    "less_": lambda a, b: a.lt_(b),
    "masked_fill_": lambda a, b: a.masked_fill_(a > b, 9.0),
    "out": lambda a, b: torch.add(b, b, out=a),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_a_tensor_is_changed_in_place(name: str):
    expected = IN_PLACE[name](A.clone(), B)
    tensor = sharded(A, SPEC)
    places = [piece.data_ptr() for piece in pieces(tensor)]

    assert IN_PLACE[name](tensor, sharded(B, SPEC)) is tensor
    assert [piece.data_ptr() for piece in pieces(tensor)] == places
    assert torch.equal(whole(tensor), expected)


def test_augmented_assignment_works_in_place():
    tensor = kept = sharded(A, SPEC)
    tensor += 1
    tensor *= sharded(B, SPEC)
    tensor -= HALF

    assert tensor is kept
    assert torch.equal(whole(tensor), (A + 1) * B - HALF)


@settings(max_examples=examples(25), deadline=None)
@given(data=st.data(), shape=shapes())
def test_any_tiling_computes_the_same_on_all_ranks(
    three: ThreadRanks, data: st.DataObject, shape: tuple[int, ...]
):
    full = distinct_values(shape)
    owned = data.draw(owned_tilings(shape, range(3)))

    def act(rank, group):
        tensor = sharded(full, owned, group)
        result = (tensor * 2 + tensor.sqrt()) > 5
        return result.dtype, result.full_tensor()

    for dtype, found in three.run(act):
        assert dtype == torch.bool
        assert torch.equal(found, (full * 2 + full.sqrt()) > 5)


@pytest.mark.parametrize(
    "act",
    [
        lambda t: t > 0,
        lambda t: t * 2j,
        lambda t: t / 2,
        lambda t: t.double() + 1,
        lambda t: t // t,
        lambda t: torch.where(t > 0, 1, 2),
    ],
)
@pytest.mark.parametrize("shape", [(4,), ()])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_a_rank_without_shards_learns_the_dtype_of_the_result(
    three: ThreadRanks, act, shape: tuple[int, ...], dtype: torch.dtype
):
    full = distinct_values(shape, dtype)

    def run(rank, group):
        made = act(sharded(full, [(2, Box.whole(shape))], group))
        return made.dtype, made.metadata().tensor_properties.dtype

    expected = act(full).dtype
    assert three.run(run) == [(expected, expected)] * 3


def test_empty_and_0_dim_tensors_compute():
    point = sk.full(listed([(0, Box((), ()))]), [], 7.0)

    assert whole(point * 2 + point).item() == 21.0
    assert whole(point.add_(1)).item() == 8.0
    assert (sk.zeros(chunks([0, 0]), 0, 3) + 1).shape == (0, 3)


def test_different_layouts_are_refused_with_both_and_the_way_out():
    one, other = sharded(A, SPEC), sharded(A, chunks([0, 0], dim=1))

    with pytest.raises(
        ConflictError,
        match=r"(?s)aten.add.Tensor needs equally laid-out sharded tensors; .*"
        r"b = b.reshard\(a.sharding_spec\(\)\)\nfirst:\nrank 0: \[0:2, 0:3\].*other:\nrank 0: ",
    ):
        _ = one + other
    assert torch.equal(whole(one + other.reshard(one.sharding_spec())), A + A)


def test_different_sizes_are_refused():
    with pytest.raises(ConflictError, match="equally laid-out"):
        _ = sharded(A, SPEC) + sharded(A[:4].contiguous(), SPEC)


@pytest.mark.parametrize(
    "act",
    [
        lambda t: t + A,
        lambda t: A + t,
        lambda t: t.add_(A),
        lambda t: A.clone().add_(t),
        lambda t: t * torch.ones(3),
        lambda t: torch.add(t, t, out=torch.empty(5, 3)),
    ],
)
def test_a_plain_tensor_is_refused_with_the_way_out(act):
    """Which part of it belongs to which shard would be a guess."""
    with pytest.raises(
        UnsupportedError, match=r"with a plain tensor of size .*shard_tensor\(plain, a.sharding"
    ):
        act(sharded(A, SPEC))


def test_values_do_not_leak_into_a_plain_0_dim_tensor():
    with pytest.raises(UnsupportedError, match="cannot write a ShardedTensor's values to a plain"):
        torch.tensor(1.0).add_(sharded(torch.tensor(2.0), [(0, Box((), ()))]))


def test_several_results_are_refused():
    with pytest.raises(UnsupportedError, match="gives several results"):
        torch.frexp(sharded(A, SPEC))


def test_a_leaf_that_requires_grad_is_not_changed_in_place():
    tensor = sharded(A, SPEC).requires_grad_()

    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        tensor.add_(1)
    with torch.no_grad():
        tensor.add_(1)
    assert torch.equal(whole(tensor), A + 1)


def test_dropout_keeps_or_doubles_each_cell():
    ones = sk.ones(chunks([0, 0]), 40, 5)

    dropped = whole(F.dropout(ones, 0.5))

    assert sorted(dropped.unique().tolist()) == [0.0, 2.0]
    # The halves are drawn apart.
    assert not torch.equal(dropped[:20], dropped[20:])

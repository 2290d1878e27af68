"""Sums and the like over all shards: the same bits on all ranks, compared with the whole tensor."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings, strategies as st

from shardkeep import sharded as sk
from shardkeep.boxes import Box
from shardkeep.errors import InvalidError, UnsupportedError
from shardkeep.sharded import ShardingSpec
from shardkeep.testing.example_counts import examples
from shardkeep.testing.layout_strategies import DTYPES, owned_tilings, shapes
from shardkeep.testing.thread_ranks import ThreadRanks
from tests.sharded.making import chunks, listed, parameter, sharded

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf")

# Rank 1 has nothing, rank 2 two shards of which one is empty.
SPEC = chunks([0, 2, 2])
FULL = torch.tensor([3.0, -1.5, 0.0, 4.0])


def on_all(world: ThreadRanks, full: torch.Tensor, act, spec: ShardingSpec = SPEC) -> torch.Tensor:
    """What all ranks found, which must be the same."""
    found = world.run(lambda _, group: act(sharded(full, spec, group)))
    assert all(each.dtype == found[0].dtype for each in found)
    assert all(each.tolist() == found[0].tolist() for each in found)
    return found[0]


REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": torch.sum,
    "method sum": lambda t: t.sum(),
    "mean": torch.mean,
    "method mean": lambda t: t.mean(),
    "min": torch.min,
    "method min": lambda t: t.min(),
    "amin": torch.amin,
    "method amin": lambda t: t.amin(),
    "max": torch.max,
    "method max": lambda t: t.max(),
    "amax": torch.amax,
    "method amax": lambda t: t.amax(),
    "norm": torch.norm,
    "method norm": lambda t: t.norm(),
    "vector_norm": torch.linalg.vector_norm,
    "fro": lambda t: t.norm("fro"),
    "1-norm": lambda t: t.norm(1),
    "3-norm": lambda t: torch.linalg.vector_norm(t, 3),
    "0-norm": lambda t: torch.linalg.vector_norm(t, 0),
    "inf-norm": lambda t: t.norm(math.inf),
    "-inf-norm": lambda t: torch.linalg.vector_norm(t, -math.inf),
    "half-norm": lambda t: torch.linalg.vector_norm(t, 0.5),
    "sum dtype": lambda t: t.sum(dtype=torch.float64),
    "mean dtype": lambda t: torch.mean(t, dtype=torch.float64),
    "norm dtype": lambda t: torch.linalg.vector_norm(t, dtype=torch.float64),
    "empty dims": lambda t: torch.amax(t, dim=()),
    "any": torch.any,
    "method any": lambda t: (t > 3.5).any(),
    "no any": lambda t: (t > 9).any(),
    "all": torch.all,
    "method all": lambda t: (t > -2).all(),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_are_those_of_the_whole_tensor(three: ThreadRanks, name: str):
    expected = REDUCTIONS[name](FULL)

    found = on_all(three, FULL, REDUCTIONS[name])

    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected)


def like_torch(act, full: torch.Tensor) -> torch.Tensor | None:
    """What torch makes of the whole tensor; None where it has no answer for the dtype."""
    try:
        return act(full)
    except (RuntimeError, NotImplementedError):
        return None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["sum", "mean", "min", "max", "vector_norm"])
def test_reductions_of_every_dtype_follow_torch(dtype: torch.dtype, name: str):
    full = torch.tensor([2, 1, 0, 2, 4]).to(dtype)
    expected = like_torch(REDUCTIONS[name], full)

    found = like_torch(REDUCTIONS[name], sharded(full, chunks([0, 0])))

    if expected is not None:
        assert found is not None
        assert found.dtype == expected.dtype
        wide = torch.complex128 if dtype.is_complex else torch.float64
        torch.testing.assert_close(found.to(wide), expected.to(wide))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.complex32])
def test_narrow_dtypes_are_summed_though_torch_does_not(dtype: torch.dtype):
    full = torch.tensor([1, 2, 4, 1]).to(dtype)

    assert sharded(full, chunks([0, 0])).sum().to(torch.complex64) == 8
    assert sharded(full, chunks([0, 0])).mean().to(torch.complex64) == 2


def test_large_integers_are_summed_exactly(three: ThreadRanks):
    full = torch.tensor([2**53 + 1, 1, -(2**40), 2**25 + 1])

    assert on_all(three, full, torch.sum).item() == sum(full.tolist())
    assert on_all(three, full, torch.max).item() == 2**53 + 1


def test_narrow_floats_are_summed_in_a_wide_dtype(three: ThreadRanks):
    full = torch.full((4000,), 0.1, dtype=torch.bfloat16)

    found = on_all(three, full, torch.sum)

    assert found.dtype == torch.bfloat16
    assert found.item() == full.double().sum().bfloat16().item()


@pytest.mark.parametrize("name", ["sum", "min", "max", "norm"])
def test_nan_is_seen_by_all(three: ThreadRanks, name: str):
    full = torch.tensor([1.0, 2.0, 3.0, math.nan])

    found = three.run(lambda _, group: REDUCTIONS[name](sharded(full, SPEC, group)).isnan().item())

    assert found == [True] * 3


@settings(max_examples=examples(30), deadline=None)
@given(data=st.data(), shape=shapes())
def test_any_tiling_has_the_same_sum_and_extremes(
    three: ThreadRanks, data: st.DataObject, shape: tuple[int, ...]
):
    full = torch.randint(-1000, 1000, shape, generator=torch.Generator().manual_seed(len(shape)))
    spec = listed(data.draw(owned_tilings(shape, range(3))))

    assert on_all(three, full, torch.sum, spec).item() == full.sum().item()
    if full.numel():
        assert on_all(three, full, torch.min, spec).item() == full.min().item()


def test_0_dim_tensors_are_reduced(three: ThreadRanks):
    spec = listed([(1, Box((), ()))])

    assert on_all(three, torch.tensor(7.0), torch.sum, spec).item() == 7.0
    assert on_all(three, torch.tensor(-7.0), torch.norm, spec).item() == 7.0


def test_tensors_without_cells_have_a_sum_but_no_extreme():
    none = sk.zeros(chunks([0, 0]), 0, 3)

    assert none.sum().item() == 0.0
    assert none.norm().item() == 0.0
    assert none.mean().isnan()
    assert sk.zeros(chunks([0]), 0, dtype=torch.int32).sum().dtype == torch.int64
    with pytest.raises(InvalidError, match="max of a tensor without cells is undefined"):
        none.max()
    with pytest.raises(InvalidError, match="inf-norm of a tensor without cells is undefined"):
        none.norm(math.inf)


def test_keepdim_is_kept():
    tensor = sharded(torch.ones(2, 2), chunks([0, 0]))

    assert torch.linalg.vector_norm(tensor, keepdim=True).tolist() == [[2.0]]
    assert tensor.norm(keepdim=True).shape == (1, 1)


@pytest.mark.parametrize(
    "act",
    [
        lambda t: t.sum(0),
        lambda t: t.sum(dim=(0, 1)),
        lambda t: t.mean(1),
        lambda t: t.max(0),
        lambda t: torch.amin(t, 1),
        lambda t: t.norm(2, 0),
    ],
)
def test_single_dims_are_refused_with_the_way_out(act):
    with pytest.raises(UnsupportedError, match=r"reduces all dims; for dim=.* use full_tensor\(\)"):
        act(sharded(torch.ones(2, 2), chunks([0, 0])))


def test_what_has_no_meaning_is_refused():
    tensor = sharded(torch.tensor([1, 2]), chunks([0, 0]))

    with pytest.raises(RuntimeError, match="mean needs a floating point or complex dtype"):
        tensor.mean()
    with pytest.raises(RuntimeError, match="norm needs a floating point or complex dtype"):
        tensor.norm()
    with pytest.raises(RuntimeError, match=r"max is undefined for torch\.complex64"):
        sharded(torch.tensor([1j, 2j]), chunks([0, 0])).max()
    with pytest.raises(InvalidError, match="norm 'nuc' is not a vector norm"):
        tensor.double().norm("nuc")
    with pytest.raises(UnsupportedError, match="norm of a ShardedTensor takes no out"):
        torch.norm(tensor.double(), out=torch.zeros(()))


def test_clipping_gradients_uses_the_norm_of_all_ranks(three: ThreadRanks):
    full = torch.arange(1.0, 9.0)

    def act(rank, group):
        weight = parameter(sharded(full, SPEC, group))
        weight.grad = sharded(full * 2, SPEC, group)
        norm = torch.nn.utils.clip_grad_norm_([weight], 1.0)
        return norm, weight.grad.full_tensor()

    plain = torch.nn.Parameter(full)
    plain.grad = full * 2
    expected = torch.nn.utils.clip_grad_norm_([plain], 1.0)
    for norm, grad in three.run(act):
        torch.testing.assert_close(norm, expected)
        torch.testing.assert_close(grad, plain.grad)

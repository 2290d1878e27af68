"""Are two sharded tensors the same? All ranks must say the same."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings, strategies as st

from shardkeep import sharded as sk
from shardkeep.boxes import Box
from shardkeep.errors import InvalidError, RankFailedError
from shardkeep.testing.example_counts import examples
from shardkeep.testing.layout_strategies import DTYPES, distinct_values, owned_tilings, shapes
from shardkeep.testing.thread_ranks import ThreadRanks
from tests.sharded.making import chunks, listed, sharded

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf")

FULL = distinct_values((5, 3))
ROWS, COLUMNS, ELSEWHERE = chunks([0, 2]), chunks([2, 0], dim=1), chunks([1])


def one_cell_off(full: torch.Tensor, by: float = 1.0) -> torch.Tensor:
    other = full.clone()
    other[-1, -1] += by
    return other


@pytest.mark.parametrize("spec", [ROWS, COLUMNS, ELSEWHERE], ids=["same", "columns", "elsewhere"])
def test_equal_tensors_are_equal_on_all_ranks_whatever_their_layouts(three: ThreadRanks, spec):
    def act(rank, group):
        one, other = sharded(FULL, ROWS, group), sharded(FULL, spec, group)
        return torch.equal(one, other), one.equal(other), torch.allclose(one, other)

    assert three.run(act) == [(True, True, True)] * 3


@pytest.mark.parametrize("spec", [ROWS, COLUMNS, ELSEWHERE], ids=["same", "columns", "elsewhere"])
def test_a_difference_that_one_rank_has_is_seen_by_all(three: ThreadRanks, spec):
    def act(rank, group):
        one, other = sharded(FULL, ROWS, group), sharded(one_cell_off(FULL), spec, group)
        return torch.equal(one, other), one.equal(other), torch.allclose(one, other)

    assert three.run(act) == [(False, False, False)] * 3


@settings(max_examples=examples(40), deadline=None)
@given(data=st.data(), shape=shapes())
def test_any_two_tilings_are_compared(
    three: ThreadRanks, data: st.DataObject, shape: tuple[int, ...]
):
    full = distinct_values(shape)
    tilings = [data.draw(owned_tilings(shape, range(3))) for _ in range(2)]
    other = full.clone()
    if full.numel():
        other.view(-1)[data.draw(st.integers(0, full.numel() - 1))] = 0

    def act(rank, group):
        one, same = (sharded(full, tiling, group) for tiling in tilings)
        return torch.equal(one, same), torch.equal(one, sharded(other, tilings[1], group))

    assert three.run(act) == [(True, not full.numel())] * 3


def test_tolerances_are_taken_by_position_and_by_name(three: ThreadRanks):
    def act(rank, group):
        one, other = sharded(FULL, ROWS, group), sharded(one_cell_off(FULL, 0.5), ROWS, group)
        return (
            torch.allclose(one, other, 0.1),
            torch.allclose(one, other, 0.0, 0.6),
            torch.allclose(one, other, rtol=0.0, atol=0.6),
            one.allclose(other, 0.0, 0.4),
        )

    assert three.run(act) == [(True, True, True, False)] * 3


def test_nan_differs_from_itself_unless_told():
    tensor = sharded(torch.tensor([1.0, torch.nan]), chunks([0, 0]))

    assert not torch.equal(tensor, tensor)
    assert not torch.allclose(tensor, tensor)
    assert torch.allclose(tensor, tensor, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_of_every_dtype_are_compared(dtype: torch.dtype):
    full = distinct_values((5, 3), dtype)
    other = full.flip(0)
    spec = chunks([0, 0])

    assert torch.equal(sharded(full, spec), sharded(full.clone(), spec))
    assert not torch.equal(sharded(full, spec), sharded(other, spec))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.complex32, torch.bfloat16])
def test_narrow_dtypes_are_close_too(dtype: torch.dtype):
    full = torch.tensor([1.0, 2.0, 4.0]).to(dtype)
    other = torch.tensor([1.0, 2.0, 5.0]).to(dtype)
    spec = chunks([0, 0])

    assert torch.allclose(sharded(full, spec), sharded(full, spec))
    assert not torch.allclose(sharded(full, spec), sharded(other, spec))
    assert torch.allclose(sharded(full, spec), sharded(other, spec), 0.5)


def test_other_sizes_and_dtypes_are_unequal():
    tensor = sharded(FULL, chunks([0, 0]))

    assert not torch.equal(tensor, sharded(FULL[:4].contiguous(), chunks([0, 0])))
    assert not torch.allclose(tensor, sharded(FULL[:4].contiguous(), chunks([0, 0])))
    assert not torch.equal(tensor, sharded(FULL.double(), chunks([0, 0])))


def test_what_one_rank_cannot_compare_raises_on_all(three: ThreadRanks):
    """Rank 1 has no shard to see the mistake with."""

    def act(rank, group):
        torch.allclose(sharded(FULL, ROWS, group), sharded(FULL.double(), ROWS, group))

    for error in three.errors(act):
        assert isinstance(error, RankFailedError)
        assert list(error.failures) == [0, 2]
        assert "torch.allclose failed on ranks 0, 2" in str(error)
        assert "Float did not match Double" in str(error)


def test_grad_devices_and_specs_do_not_matter():
    tensor = sharded(FULL, chunks([0, 0]))

    assert torch.equal(tensor, tensor.clone().requires_grad_())


@pytest.mark.parametrize("size", [(), (0, 3)])
def test_0_dim_and_empty_tensors_are_compared(three: ThreadRanks, size: tuple[int, ...]):
    full = torch.full(size, 7.0)

    def act(rank, group):
        one = sharded(full, [(0, Box.whole(size))], group)
        other = sharded(full, [(1, Box.whole(size))], group)
        return torch.equal(one, other), torch.allclose(one, other)

    assert three.run(act) == [(True, True)] * 3


@pytest.mark.parametrize("compare", [torch.equal, torch.allclose])
def test_a_plain_tensor_is_refused_with_the_way_out(compare):
    tensor = sk.zeros(listed([(0, Box((0,), (4,)))]), 4)

    for pair in ((tensor, torch.zeros(4)), (torch.zeros(4), tensor)):
        with pytest.raises(
            InvalidError, match=r"compares two sharded tensors, got .*use full_tensor\(\)"
        ):
            compare(*pair)

"""Statistics and differences of stored tensors, against NumPy on the whole."""

import math
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch

import shardkeep as sk
from shardkeep.transfer.team import Team
from shardkeep.view import comparing, values
from shardkeep.view.comparing import all_stats, difference
from shardkeep.view.opening import opened_checkpoint
from shardkeep.view.pieces import plan_batches
from shardkeep.view.small_floats import FLOAT8_VALUES
from shardkeep.view.values import Change, Stats

FLOAT8 = {
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F8_E8M0FNU": torch.float8_e8m0fnu,
}


@pytest.mark.parametrize("name", FLOAT8)
def test_every_pattern_of_eight_bits_is_the_number_that_torch_says(name):
    expected = torch.arange(256, dtype=torch.uint8).view(FLOAT8[name]).float().numpy()
    assert np.array_equal(FLOAT8_VALUES[name](), expected, equal_nan=True)


@pytest.fixture
def small_pieces(monkeypatch):
    """A tensor of some hundred cells is read in many pieces, each of many blocks."""
    monkeypatch.setattr(comparing, "plan_batches", lambda a, k: plan_batches(a, k, batch_nbytes=64))
    monkeypatch.setattr(values, "_BLOCK", 5)


def stats_of(state, path: Path) -> dict[str, Stats]:
    sk.save(state, path, durable=False)
    with opened_checkpoint(path) as opened:
        found = all_stats(opened, [one.key for one in opened.manifest.tensors], Team())
    assert found is not None
    return found


def change_of(before: torch.Tensor, after: torch.Tensor, path: Path) -> Change:
    """How far two tensors are apart; one without changes if nothing was found."""
    with ExitStack() as stack:
        opened = []
        for name, tensor in (("a", before), ("b", after)):
            sk.save({"w": tensor}, path / name, durable=False)
            opened.append(stack.enter_context(opened_checkpoint(path / name)))
        found = difference(opened[0], opened[1], None, Team())
    assert found is not None
    return found.changes[0] if found.changes else Change("w")


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.float8_e5m2,
        torch.int16,
        torch.int64,
        torch.uint8,
        torch.bool,
    ],
)
def test_stats_in_pieces_are_those_of_the_whole(tmp_path, dtype):
    whole = (torch.arange(7 * 33, dtype=torch.float64).reshape(7, 33) * 0.7).to(dtype)
    found = stats_of({"w": whole}, tmp_path)["w"]
    expected = whole.double().numpy()
    assert (found.least, found.most) == (expected.min(), expected.max())
    assert math.isclose(found.mean, expected.mean(), rel_tol=1e-12)
    assert math.isclose(found.deviation, expected.std(), rel_tol=1e-9)


def test_stats_of_complex_numbers_are_those_of_their_absolute_values(tmp_path):
    whole = torch.tensor([3 + 4j, -8 - 6j])
    found = stats_of({"w": whole}, tmp_path)["w"]
    assert (found.least, found.most, found.mean) == (5.0, 10.0, 7.5)


def test_digits_that_all_values_have_in_common_are_not_lost(tmp_path):
    whole = torch.arange(1000, dtype=torch.float64) * 1e-3 + 1e9
    found = stats_of({"w": whole}, tmp_path)["w"]
    assert math.isclose(found.deviation, whole.numpy().std(), rel_tol=1e-6)


@pytest.mark.usefixtures("small_pieces")
def test_values_that_are_not_finite_are_counted_and_left_out(tmp_path):
    whole = torch.arange(100.0)
    whole[3], whole[50], whole[51] = math.nan, math.inf, -math.inf
    state = {"w": whole, "none": torch.full((5,), math.nan), "empty": torch.empty(0, 3)}
    stats = stats_of(state, tmp_path)
    found, none = stats["w"], stats["none"]
    assert (found.nans, found.infs, found.most) == (1, 2, 99.0)
    assert math.isclose(found.mean, whole[whole.isfinite()].double().mean().item())
    assert none.nans == 5
    assert math.isnan(none.mean)
    assert (stats["empty"].count, math.isnan(stats["empty"].mean)) == (0, True)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
def test_a_change_is_found_wherever_it_is(tmp_path, dtype):
    before = torch.arange(300.0).reshape(30, 10).to(dtype)
    after = before.clone()
    after[29, 9] += 8
    found = change_of(before, after, tmp_path)
    assert (found.changed, found.count, found.most) == (1, 300, 8.0)
    assert math.isclose(found.most_relative, 8 / after[29, 9].item(), rel_tol=1e-6)


@pytest.mark.usefixtures("small_pieces")
def test_what_became_nan_changed_without_measure_and_what_stayed_nan_did_not(tmp_path):
    before = torch.arange(300.0)
    before[7] = math.nan
    after = before.clone()
    after[0] = math.nan
    found = change_of(before, after, tmp_path)
    assert (found.changed, found.most) == (1, math.inf)


def test_zeros_of_either_sign_are_equal(tmp_path):
    assert change_of(torch.zeros(9), -torch.zeros(9), tmp_path).changed == 0


def test_a_difference_too_large_for_the_dtype_is_still_measured(tmp_path):
    found = change_of(torch.tensor([3e38]), torch.tensor([-3e38]), tmp_path)
    assert math.isclose(found.most, 6e38, rel_tol=1e-6)


def test_tensors_of_other_dtypes_are_compared_as_numbers(tmp_path):
    whole = torch.arange(8.0)
    found = change_of(whole, whole.bfloat16() + 1, tmp_path)
    assert (found.changed, found.most) == (8, 1.0)

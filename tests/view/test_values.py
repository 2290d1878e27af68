"""Statistics and differences of stored tensors, against NumPy on the whole."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import shardkeep as sk
from shardkeep.view import values
from shardkeep.view.commands import open_checkpoint
from shardkeep.view.small_floats import FLOAT8_VALUES
from shardkeep.view.values import change_of, stats_of

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
    monkeypatch.setattr(values, "_PIECE_NBYTES", 64)


def saved(state, path: Path):
    sk.save(state, path, durable=False)
    return open_checkpoint(path)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int16, torch.bool])
def test_stats_in_pieces_are_those_of_the_whole(tmp_path, dtype):
    whole = (torch.arange(7 * 33, dtype=torch.float64).reshape(7, 33) * 1.7 - 90).to(dtype)
    with saved({"w": whole}, tmp_path) as checkpoint:
        found = stats_of(checkpoint, "w")
    expected = whole.double().numpy()
    assert (found.least, found.most) == (expected.min(), expected.max())
    assert math.isclose(found.mean, expected.mean(), rel_tol=1e-12)
    assert math.isclose(found.deviation, expected.std(), rel_tol=1e-9)


@pytest.mark.usefixtures("small_pieces")
def test_values_that_are_not_finite_are_counted_and_left_out(tmp_path):
    whole = torch.arange(100.0)
    whole[3], whole[50], whole[51] = math.nan, math.inf, -math.inf
    with saved({"w": whole, "none": torch.full((5,), math.nan)}, tmp_path) as checkpoint:
        found, none = stats_of(checkpoint, "w"), stats_of(checkpoint, "none")
    assert (found.nans, found.infs, found.most) == (1, 2, 99.0)
    assert math.isclose(found.mean, whole[whole.isfinite()].double().mean().item())
    assert none.nans == 5
    assert math.isnan(none.mean)


@pytest.mark.usefixtures("small_pieces")
def test_a_change_is_found_wherever_it_is(tmp_path):
    before = torch.arange(300.0).reshape(30, 10)
    after = before.clone()
    after[29, 9] += 8
    after[0, 0] = math.nan
    with saved({"w": before}, tmp_path / "a") as a, saved({"w": after}, tmp_path / "b") as b:
        found = change_of(a, b, "w")
        same = change_of(b, b, "w")
    assert (found.changed, found.count, found.most) == (2, 300, math.inf)
    assert same.changed == 0


def test_tensors_of_other_dtypes_are_compared_as_numbers(tmp_path):
    whole = torch.arange(8.0)
    with (
        saved({"w": whole}, tmp_path / "a") as a,
        saved({"w": whole.bfloat16() + 1}, tmp_path / "b") as b,
    ):
        found = change_of(a, b, "w")
    assert (found.changed, found.most) == (8, 1.0)

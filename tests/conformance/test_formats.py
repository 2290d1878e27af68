"""Is what an earlier version wrote still read to the same values?"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import shardkeep as sk
from conformance.formats.v1_state import WORLD, Day, by_boxes, by_rows, own_value, plain_state

FORMATS = Path(__file__).parents[2] / "conformance" / "formats"
V1 = FORMATS / "v1"


@pytest.fixture(scope="module", autouse=True)
def _date() -> None:
    sk.register_value_type("conformance.date", Day, Day.isoformat, Day.fromisoformat)


def assert_same(found: Any, expected: Any, path: str = "") -> None:
    """The same types, structure and bits; the strides of tensors are not kept."""
    assert type(found) is type(expected), path
    if isinstance(expected, dict):
        assert list(found) == list(expected), path
        for key in expected:
            assert_same(found[key], expected[key], f"{path}/{key}")
    elif isinstance(expected, list | tuple) and not isinstance(expected, torch.Size):
        assert len(found) == len(expected), path
        for at, one in enumerate(expected):
            assert_same(found[at], one, f"{path}/{at}")
    elif isinstance(expected, torch.Tensor) and expected.layout is not torch.strided:
        assert (found.layout, found.shape) == (expected.layout, expected.shape), path
        assert_same(found.to_dense(), expected.to_dense(), path)
    elif isinstance(expected, torch.Tensor):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape), path
        assert _bytes(found) == _bytes(expected), path
    elif isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype, path
        np.testing.assert_array_equal(found, expected)
    else:
        assert repr(found) == repr(expected), path


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("listing", sorted(FORMATS.glob("*.sha256")), ids=lambda one: one.stem)
def test_what_is_frozen_has_not_changed(listing: Path) -> None:
    listed = dict(line.split()[::-1] for line in listing.read_text().splitlines())
    folder = listing.with_suffix("")
    found = {one.name: hashlib.sha256(one.read_bytes()).hexdigest() for one in folder.iterdir()}
    assert found == listed


@pytest.mark.parametrize("rank", range(WORLD))
def test_version_1_is_read_to_the_same_state(rank: int) -> None:
    state = sk.load(V1)
    with sk.open(V1) as checkpoint:
        assert checkpoint.verify().problems == ()
        assert checkpoint.metadata["numbers"] == [1, 0.5]
        own = checkpoint.per_rank("own", rank=rank)
    expected = {
        **plain_state(),
        "by rows": by_rows(),
        "by boxes": by_boxes(),
        "own": own_value(rank),
    }
    assert_same({**state, "own": own}, expected)
    assert state["tied"][0] is state["tied"][1]


def test_a_slice_of_version_1_meets_the_files_of_all_ranks() -> None:
    with sk.open(V1) as checkpoint:
        assert len({file for _, file in checkpoint.info("by boxes").chunks}) == 5
        assert_same(checkpoint["by boxes"][1:5, 0:4], by_boxes()[1:5])
        assert_same(checkpoint["by rows"][2:7], by_rows()[2:7])


def test_version_1_fills_a_state_in_place() -> None:
    target = {"by rows": torch.zeros(7, 5), "by boxes": torch.zeros(6, 4, dtype=torch.int16)}
    sk.load(V1, into=target, strict=False)
    assert_same(target, {"by rows": by_rows(), "by boxes": by_boxes()})

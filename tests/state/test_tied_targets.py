"""Is a tensor that a checkpoint lacks filled by the one that it is tied to?"""

from __future__ import annotations

import pytest
import torch
from torch import nn

import shardkeep as sk
from shardkeep.errors import NotFoundError

WEIGHT = torch.arange(12.0).reshape(4, 3)


class Tied(nn.Module):
    """A head that is tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4, 3)
        self.head = nn.Linear(3, 4, bias=False)
        self.head.weight = self.embedding.weight


@pytest.fixture
def half(tmp_path):
    """A checkpoint with the weight under one of its names."""
    sk.save({"embedding.weight": WEIGHT}, tmp_path / "ckpt", durable=False)
    return tmp_path / "ckpt"


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_tied_parameter_is_not_missing(half, device):
    with torch.device(device):
        model = Tied()
    report = sk.load(half, into=model)

    assert report.missing == []
    assert list(report.loaded) == ["embedding.weight", "head.weight"]
    assert model.head.weight is model.embedding.weight
    assert torch.equal(model.head.weight, WEIGHT)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_tied_tensor_of_a_plain_tree_is_not_missing(half, device):
    tensor = torch.zeros(4, 3, device=device)
    into = {"embedding.weight": tensor, "twin": tensor}
    sk.load(half, into=into)

    assert torch.equal(into["twin"], WEIGHT)
    assert into["twin"].data_ptr() == into["embedding.weight"].data_ptr()


@pytest.mark.parametrize(
    "other",
    [
        torch.zeros(4, 3),
        torch.zeros(4, 3, device="meta"),
        torch.zeros(4, 3)[:2],
    ],
)
def test_one_that_is_not_tied_is_missing(half, other):
    into = {"embedding.weight": torch.zeros(4, 3), "other": other}

    with pytest.raises(NotFoundError, match="1 not in the checkpoint: other"):
        sk.load(half, into=into)
    assert sk.load(half, into=into, strict=False).missing == ["other"]


def test_a_part_of_the_same_memory_is_missing(half):
    tensor = torch.zeros(4, 3)

    with pytest.raises(NotFoundError, match="2 not in the checkpoint: rows, turned"):
        sk.load(half, into={"embedding.weight": tensor, "rows": tensor[:2], "turned": tensor.T})


def test_what_nobody_filled_fills_nothing(half):
    tensor = torch.zeros(5)

    with pytest.raises(NotFoundError, match="2 not in the checkpoint: one, two"):
        sk.load(half, into={"embedding.weight": torch.zeros(4, 3), "one": tensor, "two": tensor})


def test_two_on_the_meta_device_are_not_taken_for_tied(half):
    into = {
        "embedding.weight": torch.empty(4, 3, device="meta"),
        "other": torch.empty(4, 3, device="meta"),
    }

    with pytest.raises(NotFoundError, match="1 not in the checkpoint: other"):
        sk.load(half, into=into)

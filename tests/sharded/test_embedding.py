"""Lookups in a sharded table, compared with torch's own on the whole table."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from shardkeep.boxes import Box
from shardkeep.errors import InvalidError, RankFailedError, RankInputError
from shardkeep.sharded import ShardingSpec
from shardkeep.testing.layout_strategies import distinct_values
from shardkeep.testing.thread_ranks import ThreadRanks
from tests.sharded.making import chunks, listed, parameter, sharded

TABLE = distinct_values((9, 4)) / 10
LAYOUTS: dict[str, ShardingSpec] = {
    "rows": chunks([0, 1, 2]),
    "uneven rows, a rank with none": chunks([2, 0, 2, 2]),
    "columns": chunks([1, 2, 0], dim=1),
    "grid": listed(
        [
            (0, Box((0, 0), (5, 2))),
            (2, Box((0, 2), (5, 4))),
            (1, Box((5, 0), (9, 3))),
            (1, Box((5, 3), (9, 4))),
        ]
    ),
}
IDS = [
    torch.tensor([[0, 8, 3], [3, 3, 1]]),
    torch.tensor([4, 5, 6, 7], dtype=torch.int32),
    torch.tensor([], dtype=torch.int64),
]


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_rank_looks_up_its_own_ids(three: ThreadRanks, name: str):
    def act(rank, group):
        weight = sharded(TABLE, LAYOUTS[name], group)
        return F.embedding(IDS[rank], weight)

    for rank, found in enumerate(three.run(act)):
        assert torch.equal(found, F.embedding(IDS[rank], TABLE))


def test_a_module_with_a_sharded_table_looks_up(three: ThreadRanks):
    def act(rank, group):
        module = nn.Embedding(9, 4, padding_idx=1)
        module.weight = nn.Parameter(sharded(TABLE, LAYOUTS["grid"], group))
        return module(IDS[0])

    for found in three.run(act):
        assert torch.equal(found, F.embedding(IDS[0], TABLE))


def test_0_dim_ids_are_looked_up():
    assert torch.equal(F.embedding(torch.tensor(3), sharded(TABLE, chunks([0, 0]))), TABLE[3])


def renormed(max_norm: float, norm_type: float) -> tuple[list[torch.Tensor], torch.Tensor]:
    """What torch finds when all ranks' ids go through one whole table, and the table after."""
    table = TABLE.clone()
    found = [F.embedding(ids, table, max_norm=max_norm, norm_type=norm_type) for ids in IDS]
    return found, table


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("norm_type", [2.0, 1.0])
def test_rows_that_are_too_long_are_shortened_in_the_table_too(
    three: ThreadRanks, name: str, norm_type: float
):
    def act(rank, group):
        weight = parameter(sharded(TABLE, LAYOUTS[name], group))
        found = F.embedding(IDS[rank], weight, max_norm=2.5, norm_type=norm_type)
        return found, weight.full_tensor()

    expected, table = renormed(2.5, norm_type)
    assert not torch.equal(table, TABLE)
    for rank, (found, after) in enumerate(three.run(act)):
        torch.testing.assert_close(found, expected[rank])
        torch.testing.assert_close(after, table)


OFFSETS = [None, torch.tensor([0, 1, 1]), torch.tensor([0, 0])]
BAGS: dict[str, dict[str, Any]] = {
    "mean": {},
    "sum": {"mode": "sum"},
    "max": {"mode": "max"},
    "padding": {"padding_idx": 3, "mode": "sum"},
    "padding from the end": {"padding_idx": -6},
    "padding that no id names": {"padding_idx": 2},
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("options", BAGS)
def test_bags_are_those_of_the_whole_table(three: ThreadRanks, name: str, options: str):
    def act(rank, group):
        weight = sharded(TABLE, LAYOUTS[name], group)
        return F.embedding_bag(IDS[rank], weight, OFFSETS[rank], **BAGS[options])

    for rank, found in enumerate(three.run(act)):
        expected = F.embedding_bag(IDS[rank], TABLE, OFFSETS[rank], **BAGS[options])
        torch.testing.assert_close(found, expected)


def test_bags_take_weights_and_a_last_offset(three: ThreadRanks):
    options: dict[str, Any] = {
        "mode": "sum",
        "per_sample_weights": torch.tensor([0.5, 2.0, 1.0, 3.0]),
        "include_last_offset": True,
    }
    offsets = torch.tensor([0, 3, 4])

    def act(rank, group):
        weight = sharded(TABLE, LAYOUTS["columns"], group)
        return F.embedding_bag(IDS[1], weight, offsets, **options)

    expected = F.embedding_bag(IDS[1], TABLE, offsets, **options)
    for found in three.run(act):
        torch.testing.assert_close(found, expected)


def test_bags_shorten_rows_too(three: ThreadRanks):
    def act(rank, group):
        weight = parameter(sharded(TABLE, LAYOUTS["columns"], group))
        found = F.embedding_bag(IDS[0], weight, max_norm=2.5, mode="sum")
        return found, weight.full_tensor()

    table = TABLE.clone()
    expected = F.embedding_bag(IDS[0], table, max_norm=2.5, mode="sum")
    for found, after in three.run(act):
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(after, table)


def test_an_embedding_bag_module_with_a_sharded_table(three: ThreadRanks):
    def act(rank, group):
        module = nn.EmbeddingBag(9, 4, mode="sum")
        module.weight = nn.Parameter(sharded(TABLE, LAYOUTS["rows"], group))
        return module(IDS[0])

    for found in three.run(act):
        torch.testing.assert_close(found, F.embedding_bag(IDS[0], TABLE, mode="sum"))


@pytest.mark.parametrize("bad", [9, -1])
def test_an_id_that_the_table_lacks_raises_on_all(three: ThreadRanks, bad: int):
    def act(rank, group):
        ids = torch.tensor([1, bad]) if rank == 1 else torch.tensor([0])
        F.embedding(ids, sharded(TABLE, LAYOUTS["rows"], group))

    for error in three.errors(act):
        assert isinstance(error, RankInputError)
        assert list(error.failures) == [1]
        assert "the table has rows 0 to 8" in str(error)


@pytest.mark.parametrize("option", ["sparse", "scale_grad_by_freq"])
def test_options_for_gradients_are_refused_on_all(three: ThreadRanks, option: str):
    def act(rank, group):
        options = {option: True} if rank == 2 else {}
        F.embedding_bag(IDS[0], sharded(TABLE, LAYOUTS["rows"], group), **options)  # type: ignore[arg-type]

    for error in three.errors(act):
        assert isinstance(error, RankFailedError)
        assert list(error.failures) == [2]
        assert "no sparse or scale_grad_by_freq" in str(error)


def test_a_table_has_two_dims():
    with pytest.raises(InvalidError, match="an embedding table has 2 dims, got 3"):
        F.embedding(torch.tensor([0]), sharded(TABLE.reshape(9, 2, 2), chunks([0, 0])))

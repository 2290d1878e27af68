"""Runs of real ranks that are broken off go on: bit for bit, or on other ranks and parallelisms."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import shardkeep as sk
from tests.distributed import cases_training as cases
from tests.distributed.training import Run, assert_same_snapshot

FOUR, TWO, OTHER_TWO, THREE = [0, 1, 2, 3], [0, 1], [2, 3], [0, 1, 2]


@pytest.mark.parametrize("way", ["ddp", "fsdp", "hsdp", "tp", "fsdp_tp"])
def test_a_run_goes_on_bit_for_bit(pool4, tmp_path, way):
    in_background = way == "hsdp"

    pool4.run(
        cases.a_run_goes_on_bit_for_bit,
        folder=str(tmp_path),
        way=way,
        in_background=in_background,
    )


def test_dropout_makes_the_random_state_matter(pool4):
    assert pool4.run(cases.dropout_matters) == [True] * 4


# Other ranks, other parallelisms


@pytest.fixture(scope="module")
def saved(pool4, tmp_path_factory) -> tuple[str, list[float]]:
    """A checkpoint of FSDP2 on 4 ranks, and the losses that follow it there."""
    folder = tmp_path_factory.mktemp("trained")
    losses = pool4.run(cases.train_and_save, folder=str(folder), way="fsdp")
    return str(folder / "fsdp"), averaged(losses)


def averaged(losses: list[list[float] | None]) -> list[float]:
    """The loss of each global batch; all ranks have equal parts of it."""
    present = [mine for mine in losses if mine is not None]
    return [sum(step) / len(step) for step in zip(*present, strict=True)]


def assert_close(found: list[float], expected: list[float]) -> None:
    assert found == pytest.approx(expected, rel=1e-4)
    assert len(set(expected)) == len(expected), "nothing was learnt"


@pytest.mark.parametrize(
    ("way", "members"),
    [("tp", TWO), ("tp", OTHER_TWO), ("fsdp_tp", FOUR), ("hsdp", FOUR), ("ddp", FOUR)],
)
def test_fully_sharded_on_four_goes_on_in_another_way(pool4, saved, way, members):
    path, expected = saved

    losses = pool4.run(cases.load_and_train, path=path, way=way, members=members)

    assert_close(averaged(losses), expected)


def test_fully_sharded_on_four_goes_on_fully_sharded_on_three(pool3, saved):
    path, expected = saved

    losses = pool3.run(cases.load_and_train, path=path, way="fsdp", members=THREE)

    assert_close(averaged(losses), expected)


def test_fully_sharded_on_four_goes_on_in_a_process_alone(saved):
    path, expected = saved
    run = Run("plain", (0,), seed=2, dropout=0.0)

    sk.load(path, run.state)

    truth = torch.load(f"{path}.pt", weights_only=True)
    assert_same_snapshot(run.full(), truth)
    assert run.cursor.remaining == 132 - 4 * 12
    assert_close(run.train(6), expected)


@pytest.mark.parametrize("way", ["fsdp", "fsdp_tp"])
def test_a_sharded_model_on_the_meta_device_gets_its_shards_alone(pool4, saved, way):
    path, expected = saved

    losses = pool4.run(cases.a_sharded_meta_model_gets_its_shards_alone, path=path, way=way)

    assert_close(averaged(losses), expected)


# The data


def test_each_sample_is_seen_once_when_ranks_come_and_go(pool4, pool3, tmp_path):
    first, second = str(tmp_path / "1"), str(tmp_path / "2")

    seen = pool4.run(cases.take_some, paths=[None, first], members=FOUR, counts=[5, 9, 0, 3])
    seen += pool4.run(cases.take_some, paths=[first, second], members=OTHER_TWO, counts=[11, 2])
    seen += pool3.run(cases.take_some, paths=[second, None], members=THREE, counts=[100] * 3)

    assert [len(mine) for mine in seen[:8]] == [5, 9, 0, 3, 0, 0, 11, 2]
    assert sorted(sample for mine in seen for sample in mine) == list(range(100))


def test_a_rank_that_is_an_epoch_ahead_is_found_when_saving(pool4, tmp_path):
    said = pool4.run(cases.a_rank_is_an_epoch_ahead, path=str(tmp_path / "c"))

    assert all("data.epoch" in text for text in said), said
    assert not os.path.exists(Path(tmp_path, "c", "manifest.json"))


def test_twins_that_have_taken_different_numbers_are_refused_on_all_ranks(pool4, tmp_path):
    said = pool4.run(cases.twins_have_taken_different_numbers, path=str(tmp_path / "c"))

    assert all("data-parallel rank 1 have taken 4 and 5 samples" in text for text in said), said


# Random states


def test_new_ranks_draw_numbers_of_their_own(pool4, pool3, tmp_path):
    path = str(tmp_path / "c")
    expected = pool3.run(cases.save_random_state, path=path)

    drawn = pool4.run(cases.load_random_state, path=path)

    assert drawn[:3] == expected
    assert len({tuple(numbers) for numbers in drawn}) == 4
    assert pool4.run(cases.load_random_state, path=path) == drawn

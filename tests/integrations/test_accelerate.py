"""What a real Accelerator on two processes has prepared and registered is saved and comes back."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from accelerate.state import AcceleratorState

import shardkeep as sk
from shardkeep.integrations.accelerate import load_state
from tests.integrations.accelerate_job import BATCHES, EPOCHS, Run
from tests.integrations.jobs import import_without, run_job

pytestmark = [pytest.mark.distributed, pytest.mark.xdist_group("distributed")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("accelerate")


@pytest.fixture(scope="module")
def said(folder: Path) -> list[dict[str, Any]]:
    return run_job("accelerate_job", folder)


@pytest.mark.parametrize(
    ("whole", "rest", "done"),
    [("whole", "within", BATCHES + 2), ("whole-dropout", "between", BATCHES)],
)
def test_a_resumed_run_goes_on_bit_for_bit(said, whole, rest, done):
    for one in said:
        losses = one[whole]["losses"]
        assert len(losses) == len(set(losses)) == EPOCHS * BATCHES
        assert one[rest]["losses"] == losses[done:]
        assert one[rest]["lr"] == one[whole]["lr"]
    # The buffers of a BatchNorm are each rank's own, and those of the first are kept.
    assert said[0][rest]["weights"] == said[0][whole]["weights"]


def test_scaler_step_epoch_and_random_states_come_back(said):
    for one in said:
        found = one["within"]
        assert (found["scale"], found["step"], found["epoch"]) == (32.0, 0, 1)
        assert found["numbers"][0] == found["numbers"][1]
    assert said[0]["within"]["numbers"] != said[1]["within"]["numbers"]


def test_what_differs_on_purpose_comes_back_to_its_rank(said):
    assert [one["own"] for one in said] == [0, 10]


def test_a_checkpointer_keeps_an_accelerator(said):
    assert [one["run"] for one in said] == [[2, [2], 2]] * 2


def test_the_checkpoint_is_whole_and_both_ranks_wrote_it(said, folder):
    assert said
    with sk.open(folder / "within") as checkpoint:
        assert checkpoint.verify().problems == ()
        assert "models.0.1.running_mean" in checkpoint
        files = {file for key in checkpoint for _, file in checkpoint.info(key).chunks}
    assert len({name.split("-")[-2] for name in files}) == 2
    assert not list(folder.rglob("*.pkl"))
    assert not list(folder.rglob("*.bin"))


@pytest.fixture
def alone() -> Iterator[Run]:
    """A training in this process, without any group."""
    yield Run(0.0)
    AcceleratorState._reset_state(reset_partial_state=True)


def test_one_process_loads_what_two_have_saved(said, folder, alone):
    load_state(alone.accelerator, folder / "within")
    assert (alone.progress.epoch, alone.progress.batch) == (1, 2)
    assert alone.scaler.get_scale() == 32.0
    saved = sk.load(folder / "within", keys=["models.*"])["models"]
    assert alone.net[0].weight.equal(saved[0]["0.weight"])


@pytest.mark.parametrize(
    ("mistake", "text"),
    [
        ("another_width", "'models.0.0.weight' has shape (12, 6) here, (10, 6) in the checkpoint"),
        ("ranks_differ", "'registered.0.note' is 0 on rank 0, but 1 on rank 1"),
        ("there_already", "holds a checkpoint already"),
        ("one_more_object", "not in the checkpoint: registered.1"),
        ("hooked", "hooks of register_save_state_pre_hook"),
    ],
)
def test_a_mistake_is_named_on_every_rank(said, mistake, text):
    for one in said:
        assert text in one["mistakes"][mistake]


def test_without_accelerate_the_extra_is_named():
    assert "pip install 'shardkeep[accelerate]'" in import_without(
        "accelerate", "shardkeep.integrations.accelerate"
    )

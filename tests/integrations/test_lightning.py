"""A real Lightning Trainer on two processes saves, is resumed, and ends as if it never stopped."""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.strategies import SingleDeviceStrategy

import shardkeep as sk
from shardkeep.integrations.lightning import ShardkeepMixin
from tests.integrations.jobs import import_without, run_job
from tests.integrations.lightning_job import Model, loader

pytestmark = [pytest.mark.distributed, pytest.mark.xdist_group("distributed")]
WAYS = ["ddp", "fsdp"]
EPOCHS, BATCHES = 4, 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lightning")


@pytest.fixture(scope="module")
def said(folder: Path) -> list[dict[str, Any]]:
    return run_job("lightning_job", folder)


@pytest.mark.parametrize("way", WAYS)
def test_a_resumed_run_has_the_losses_and_weights_of_one_left_alone_bit_for_bit(said, way):
    for rank, one in enumerate(said):
        whole, half, rest = one[way], one[f"{way}-half"], one[f"{way}-rest"]
        assert len(whole["losses"]) == EPOCHS * BATCHES
        assert half["losses"] + rest["losses"] == whole["losses"]
        assert len(set(whole["losses"])) == EPOCHS * BATCHES
        if rank == 0 or way == "ddp":
            assert rest["weights"] == whole["weights"]


@pytest.mark.parametrize("way", WAYS)
def test_schedulers_loops_and_callbacks_go_on(said, way):
    for one in said:
        whole, rest = one[way], one[f"{way}-rest"]
        assert rest["lr"] == whole["lr"] == 0.05 * 0.5**EPOCHS
        assert (rest["step"], rest["epoch"]) == (EPOCHS * BATCHES, EPOCHS)
        assert rest["best"] == 2


def test_what_the_trainer_drops_is_gone(said):
    # The two best of four epochs, and the last.
    assert [len(one["ddp-rest"]["files"]) for one in said] == [3, 3]
    assert not any(name.startswith(".") for name in said[0]["ddp-rest"]["files"])


def test_a_fully_sharded_run_goes_on_under_data_parallelism(said):
    for one in said:
        expected = one["fsdp-rest"]["losses"]
        assert one["cross"]["losses"] == pytest.approx(expected, rel=1e-5)


def test_the_model_alone_is_loaded_to_validate(said):
    by_way = [one["validated"] for one in said]
    assert by_way[0] == by_way[1]
    assert by_way[0][0] == pytest.approx(by_way[0][1])


@pytest.mark.parametrize("way", WAYS)
def test_each_checkpoint_is_one_of_shardkeep_and_whole(said, folder, way):
    with sk.open(folder / way / "last.ckpt") as checkpoint:
        report = checkpoint.verify()
        writers = {file for key in checkpoint for _, file in checkpoint.info(key).chunks}
    assert report.problems == ()
    assert report.nbytes > 0
    assert len({name.split("-")[-2] for name in writers}) == 2, "both ranks wrote"
    assert not list((folder / way).rglob("*.pt"))


def test_a_plain_model_takes_the_weights(said, folder):
    model = Model()
    sk.load(folder / "fsdp/last.ckpt", into={"model": model}, keys=["model.*"])
    found = {name: value.flatten().tolist() for name, value in model.state_dict().items()}
    assert found == said[0]["fsdp"]["weights"]


class Alone(ShardkeepMixin, SingleDeviceStrategy):
    pass


def test_one_process_goes_on_from_a_checkpoint_of_two(said, folder, tmp_path):
    model = Model()
    run = pl.Trainer(
        strategy=Alone(torch.device("cpu")),
        accelerator="cpu",
        max_epochs=3,
        logger=False,
        default_root_dir=tmp_path,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    run.fit(model, loader(), ckpt_path=folder / "cross/last.ckpt")
    assert (run.current_epoch, len(model.losses)) == (3, 8)
    assert run.optimizers[0].param_groups[0]["lr"] == 0.05 * 0.5**3


@pytest.mark.parametrize(
    ("mistake", "text"),
    [
        ("bad_value", "'lightning.hyper_parameters.note': a builtins.object cannot be kept"),
        ("other_width", "'model.net.0.weight' has shape (12, 6) here, (10, 6) in the checkpoint"),
        ("not_lightning", "was not saved by a Lightning Trainer with shardkeep's strategy"),
        ("missing", "there is no folder"),
    ],
)
def test_a_mistake_is_named_on_every_rank(said, mistake, text):
    for one in said:
        assert text in one["mistakes"][mistake]


def test_a_save_that_failed_leaves_no_checkpoint(said, folder):
    assert said
    assert not list((folder / "bad").rglob("manifest.json"))


def test_without_lightning_the_extra_is_named():
    assert "pip install 'shardkeep[lightning]'" in import_without(
        "lightning", "shardkeep.integrations.lightning"
    )

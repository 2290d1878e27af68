"""A real Hugging Face Trainer on two processes is stopped, and ends as if it never was."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import GPT2LMHeadModel

import shardkeep as sk
from tests.integrations.jobs import import_without, run_job
from tests.integrations.transformers_job import PER_EPOCH, SAMPLES, STEPS, tiny

pytestmark = [pytest.mark.distributed, pytest.mark.xdist_group("distributed")]
RESUMED = {"within": 8, "between": 6, "told-rest": 6}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("transformers")


@pytest.fixture(scope="module")
def said(folder: Path) -> list[dict[str, Any]]:
    return run_job("transformers_job", folder)


def test_an_epoch_deals_every_sample_to_one_rank(said):
    first = [
        sample for one in said for batch in one["whole"]["seen"][:PER_EPOCH] for sample in batch
    ]
    assert sorted(first) == list(range(SAMPLES))
    assert said[0]["whole"]["seen"][:PER_EPOCH] != said[0]["whole"]["seen"][PER_EPOCH:]


@pytest.mark.parametrize("way", ["within", "between"])
def test_a_resumed_run_sees_the_data_that_was_left_and_gets_the_same_losses_and_weights(said, way):
    start = RESUMED[way]
    for one in said:
        whole, rest = one["whole"], one[way]
        assert rest["seen"] == whole["seen"][start:]
        assert rest["losses"] == whole["losses"]
        assert len(set(whole["losses"].values())) == STEPS
        assert rest["weights"] == whole["weights"]


@pytest.mark.parametrize("way", RESUMED)
def test_scheduler_trainer_and_callbacks_go_on(said, way):
    for one in said:
        whole, rest = one["whole"], one[way]
        assert rest["lr"] == whole["lr"]
        assert (rest["step"], rest["epoch"], rest["count"]) == (STEPS, 2.0, STEPS)
        assert rest["tied"]


def test_old_checkpoints_go_and_the_trainer_writes_none_itself(said):
    for one in said:
        assert one["whole"]["steps"] == one["within"]["steps"] == [8, 12]
        assert one["between"]["steps"] == [6, 12]
        assert one["whole"]["own"] == one["epochs"]["own"] == []


def test_the_best_by_what_the_trainer_evaluated_is_known(said, folder):
    run = sk.Checkpointer(folder / "epochs/run", keep_best=("eval_loss", "min", 1))
    assert said[0]["epochs"]["steps"] == [12]
    assert run.best() == 12
    with sk.open(run.path_of(12)) as checkpoint:
        state = json.loads(checkpoint.metadata["trainer_state"])
    assert [entry["step"] for entry in state["log_history"] if "eval_loss" in entry] == [6, 12]


def test_a_run_whose_one_rank_is_told_to_stop_saves_and_goes_on(said):
    for one in said:
        told, rest = one["told"], one["told-rest"]
        assert told["steps"] == [told["step"]]
        assert 5 <= told["step"] < STEPS
        assert rest["seen"] == one["whole"]["seen"][told["step"] :]
        assert rest["weights"] == one["whole"]["weights"]


def test_each_checkpoint_is_whole_and_both_ranks_wrote_it(said, folder):
    assert said
    with sk.open(folder / "whole/run/step-00000012") as checkpoint:
        assert checkpoint.verify().problems == ()
        files = {file for key in checkpoint for _, file in checkpoint.info(key).chunks}
    assert len({name.split("-")[-2] for name in files}) == 2
    assert not list(folder.rglob("*.pt*"))


def test_a_plain_model_takes_the_weights(said, folder):
    model: GPT2LMHeadModel = tiny()
    sk.load(folder / "whole/run/step-00000012", into={"model": model}, keys=["model.*"])
    found = {name: value.flatten().tolist() for name, value in model.state_dict().items()}
    assert found == said[0]["whole"]["weights"]


@pytest.mark.parametrize(
    ("mistake", "text"),
    [
        ("trained_directly", "call callback.train(trainer) instead of trainer.train()"),
        ("another_model", "4 not in the checkpoint: model.weight, model.bias"),
        ("not_of_a_trainer", "the checkpoint was not saved by ShardkeepCallback"),
        ("best_at_end", "pass keep_best=('eval_loss', 'min', 1)"),
        ("no_such_step", "there is no step 5; there are [8, 12]"),
    ],
)
def test_a_mistake_is_named_on_every_rank(said, mistake, text):
    for one in said:
        assert text in one["mistakes"][mistake]


def test_without_transformers_the_extra_is_named():
    assert "pip install 'shardkeep[transformers]'" in import_without(
        "transformers", "shardkeep.integrations.transformers"
    )

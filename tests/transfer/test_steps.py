"""Is each checkpoint of a run listed with the condition that it is in?"""

from __future__ import annotations

import math
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

import shardkeep as sk
from shardkeep.errors import InvalidError, StorageError
from shardkeep.manifest import check_json
from shardkeep.storage import LocalStorage
from shardkeep.storage.shelf import LocalShelf
from shardkeep.transfer import steps
from shardkeep.transfer.steps import (
    StepRecord,
    current,
    decode_metrics,
    encode_metrics,
    newest,
    parse_step,
    read_steps,
    step_name,
)


@pytest.fixture
def shelf(tmp_path: Path) -> LocalShelf:
    return LocalShelf(tmp_path)


def save(shelf: LocalShelf, step: int, run: Any = None, **options: Any) -> Path:
    path = shelf.path(step_name(step))
    sk.save({"w": torch.full((50,), step)}, path, metadata={"run": run}, **options)
    return path


def data_file(path: Path) -> Path:
    (found,) = path.glob("*.safetensors")
    return found


@given(st.integers(0, 10**18 - 1))
def test_a_step_is_read_from_its_folders_name(step):
    assert parse_step(step_name(step)) == step


@pytest.mark.parametrize("step", [-1, 10**18])
def test_a_number_that_no_folder_can_have_is_no_step(step):
    with pytest.raises(InvalidError, match="from 0 to 9"):
        step_name(step)


@pytest.mark.parametrize("name", ["logs", "step-1", "step-0000000x", "step-000000012", ".step-1"])
def test_other_folders_are_no_steps(name, shelf):
    shelf.path(name).mkdir()
    assert read_steps(shelf) == []


def test_a_record_says_what_was_saved(shelf):
    said = {"saved_at": 12.5, "metrics": {"loss": 0.5, "bad": "nan"}, "left_behind": {"9": "id"}}
    path = save(shelf, 7, said)
    (record,) = read_steps(shelf)
    with sk.open(path) as checkpoint:
        assert record.save_id == checkpoint.manifest.save_id
    assert (record.step, record.condition, record.problem) == (7, "committed", "")
    assert (record.world, record.saved_at) == (1, 12.5)
    assert record.nbytes == data_file(path).stat().st_size
    assert record.metrics["loss"] == 0.5
    assert math.isnan(record.metrics["bad"])
    assert record.left_behind == {9: "id"}


def test_records_are_in_the_order_of_steps(shelf):
    for step in (200_000_000, 3, 10):
        save(shelf, step)
    assert [one.step for one in read_steps(shelf)] == [3, 10, 200_000_000]


@pytest.mark.parametrize("said", [None, 3, "run", {"metrics": 1, "saved_at": "x"}, {"metrics": []}])
def test_a_checkpoint_that_no_run_has_saved_is_listed_too(shelf, said):
    save(shelf, 1, said)
    (record,) = read_steps(shelf)
    assert (record.condition, record.metrics, record.saved_at) == ("committed", {}, 0.0)


def test_a_folder_without_a_manifest_is_half_written(shelf):
    path = save(shelf, 1)
    (path / "manifest.json").unlink()
    shelf.path(step_name(2)).mkdir()
    assert [(one.step, one.condition) for one in read_steps(shelf)] == [
        (1, "half-written"),
        (2, "half-written"),
    ]


def cut_manifest(path: Path) -> None:
    manifest = path / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:-40])


def link_manifest(path: Path) -> None:
    (path / "manifest.json").rename(path / "other")
    (path / "manifest.json").symlink_to(path / "other")


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (cut_manifest, "manifest"),
        (link_manifest, "symbolic link"),
        (lambda path: data_file(path).unlink(), "safetensors is missing"),
        (lambda path: data_file(path).write_bytes(b"123"), "has 3 bytes instead of"),
    ],
)
def test_damage_that_can_be_seen_without_reading_is_named(shelf, damage, text):
    damage(save(shelf, 1))
    (record,) = read_steps(shelf)
    assert record.condition == "damaged"
    assert text in record.problem


def test_a_run_that_cannot_be_read_is_an_error_and_not_damage(shelf, monkeypatch):
    def refused(self: LocalStorage, key: str, *, max_nbytes: int) -> bytes:
        raise StorageError(5, "Input/output error", key)

    save(shelf, 1)
    monkeypatch.setattr(LocalStorage, "get", refused)
    with pytest.raises(StorageError, match="Input/output error"):
        read_steps(shelf)


def while_it_is_read(monkeypatch: pytest.MonkeyPatch, act: Any) -> None:
    """Have `act` happen once, between manifest and files."""
    acts, read_summary = [act], steps.read_summary

    def reading(storage: Any) -> Any:
        found = read_summary(storage)
        while acts:
            acts.pop()()
        return found

    monkeypatch.setattr(steps, "read_summary", reading)


def test_a_step_that_is_removed_while_it_is_looked_at_is_not_there(shelf, monkeypatch):
    path = save(shelf, 1)
    while_it_is_read(monkeypatch, lambda: shutil.rmtree(path))
    assert read_steps(shelf) == []


def test_a_run_whose_only_step_is_replaced_by_a_newer_one_meanwhile_is_not_empty(
    shelf, monkeypatch
):
    path = save(shelf, 1)

    def go_on() -> None:
        save(shelf, 2)
        shutil.rmtree(path)

    names = shelf.names()
    acts = [go_on]

    def listing() -> list[str]:
        if acts:
            acts.pop()()
            return names
        return sorted(os.listdir(shelf.location))

    monkeypatch.setattr(shelf, "names", listing)
    assert [(one.step, one.condition) for one in read_steps(shelf)] == [(2, "committed")]


def test_a_step_that_is_replaced_while_it_is_looked_at_is_the_new_one(shelf, monkeypatch):
    path = save(shelf, 1)
    before = read_steps(shelf)[0].save_id
    while_it_is_read(monkeypatch, lambda: save(shelf, 1, overwrite=True))
    (record,) = read_steps(shelf)
    with sk.open(path) as checkpoint:
        assert record.save_id == checkpoint.manifest.save_id != before
    assert record.condition == "committed"


@given(st.dictionaries(st.text(), st.floats()))
def test_metrics_survive_json(metrics):
    said = encode_metrics(metrics)
    check_json(said, "metrics")
    found = decode_metrics(said)
    assert found.keys() == metrics.keys()
    for name, number in metrics.items():
        assert found[name] == number or (math.isnan(number) and math.isnan(found[name]))


def test_metrics_are_what_float_takes():
    assert encode_metrics({"a": torch.tensor(2), "b": True}) == {"a": 2.0, "b": 1.0}
    with pytest.raises(InvalidError, match="metric 'a' is no number"):
        encode_metrics({"a": torch.zeros(2)})


def test_what_a_run_has_left_behind_is_not_what_it_goes_on_from():
    old = [StepRecord(step, "", "committed", save_id=f"old{step}") for step in (10, 20, 30)]
    new = StepRecord(15, "", "committed", save_id="new", left_behind={20: "old20", 30: "old30"})
    records = [old[0], new, *old[1:]]
    assert [one.step for one in current(records)] == [10, 15]
    assert newest(records) == new


def test_a_step_that_was_saved_anew_is_no_longer_left_behind():
    back = StepRecord(15, "", "committed", save_id="new", left_behind={20: "old20"})
    again = StepRecord(20, "", "committed", save_id="new20")
    assert newest([back, again]) == again


def test_a_damaged_step_says_nothing_about_others():
    back = StepRecord(15, "", "damaged", save_id="new", left_behind={20: "old20"})
    old = StepRecord(20, "", "committed", save_id="old20")
    assert newest([back, old]) == old

"""A run with a local tier, in one process; several hosts are in tests/distributed/test_hosts.py."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

import shardkeep as sk
from shardkeep.errors import ConflictError, CorruptError, InvalidError, StorageError
from shardkeep.transfer import upload
from shardkeep.transfer.upload import Upload


def state_of(version: int) -> dict[str, Any]:
    return {"w": torch.arange(100_000) + version, "version": version}


def restored(run: sk.Checkpointer, **options: Any) -> tuple[int, int]:
    """The step, and the version that came back whole."""
    state = state_of(0)
    step = run.restore(state, **options)
    assert torch.equal(state["w"], state_of(state["version"])["w"])
    return step, state["version"]


@pytest.fixture
def places(tmp_path) -> dict[str, Path]:
    return {"slow": tmp_path / "slow", "local": tmp_path / "local"}


@pytest.fixture(autouse=True)
def warnings_are_kept(caplog) -> None:
    """Whatever other tests have made of the logger."""
    caplog.set_level(logging.WARNING, logger="shardkeep")


def run_of(places: dict[str, Path], **options: Any) -> sk.Checkpointer:
    return sk.Checkpointer(places["slow"], local=places["local"], **options)


def names(path: Path) -> list[str]:
    return sorted(one.name for one in path.iterdir() if one.name.startswith("step"))


def files(path: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in path.glob("*.safetensors")}


def spoil(path: Path) -> None:
    for one in path.glob("*.safetensors"):
        content = bytearray(one.read_bytes())
        content[-3] ^= 1
        one.write_bytes(content)


def test_a_step_is_on_the_local_disk_first_and_then_in_the_slow_tier(places):
    may_upload = threading.Event()

    def wait(self: Upload) -> None:
        assert may_upload.wait(20)
        real(self)

    real = Upload.run
    with patch.object(Upload, "run", wait), run_of(places) as run:
        run.save(1, state_of(1))
        assert names(places["local"]) == ["step-00000001"]
        assert run.steps() == []
        may_upload.set()
        run.wait()
        assert run.steps() == [1]
    local, slow = (files(places[one] / "step-00000001") for one in ("local", "slow"))
    assert local == slow
    assert local


def test_steps_that_come_faster_than_uploads_are_left_out_but_for_the_newest(places):
    entered, may_upload = threading.Event(), threading.Event()

    def wait(self: Upload) -> None:
        entered.set()
        assert may_upload.wait(20)
        real(self)

    real = Upload.run
    with patch.object(Upload, "run", wait), run_of(places) as run:
        run.save(1, state_of(1))
        assert entered.wait(20)
        for step in (2, 3, 4):
            run.save(step, state_of(step))
        may_upload.set()
        run.wait()
        assert run.steps() == [1, 4]
    assert names(places["local"]) == ["step-00000003", "step-00000004"]


def test_both_tiers_keep_what_they_are_told(places):
    with run_of(places, keep_last=3, keep_local=1) as run:
        for step in range(1, 6):
            run.save(step, state_of(step))
            run.wait()
    assert names(places["slow"]) == [f"step-0000000{n}" for n in (3, 4, 5)]
    assert names(places["local"]) == ["step-00000005"]


def test_a_job_that_ended_before_the_upload_goes_on_with_it(places):
    broken = patch.object(upload, "copy_files", side_effect=StorageError("the store is gone"))
    with broken, pytest.raises(StorageError, match="the store is gone"), run_of(places) as run:
        run.save(7, state_of(7))
    # As if it had been killed: its lock, and a file that is half there.
    save_id = next(iter(files(places["local"] / "step-00000007")))[:16]
    folder = places["slow"] / "step-00000007"
    (folder / f"{save_id}.lock").touch()
    for name in files(places["local"] / "step-00000007"):
        (folder / name).write_bytes(b"half")

    with run_of(places) as run:
        assert restored(run) == (7, 7)
        run.wait()
        assert run.steps() == [7]
    assert sk.open(folder).verify().problems == ()


def test_a_failed_upload_is_told_and_the_next_step_tries_again(places, caplog):
    run = run_of(places)
    with patch.object(upload, "copy_files", side_effect=StorageError("the store is gone")):
        run.save(1, state_of(1))
        with pytest.raises(StorageError, match="the store is gone"):
            run.wait()
    assert "step 1 was not brought to the slow tier" in caplog.text
    run.save(2, state_of(2))
    run.close()
    assert run.steps() == [2]


def test_a_damaged_local_file_is_read_from_the_slow_tier(places, caplog):
    with run_of(places) as run:
        run.save(1, state_of(1))
    spoil(places["local"] / "step-00000001")
    with run_of(places) as run:
        assert restored(run) == (1, 1)
    assert "is damaged: another copy is used" in caplog.text


def test_a_missing_local_file_is_read_from_the_slow_tier(places):
    with run_of(places) as run:
        run.save(1, state_of(1))
    next((places["local"] / "step-00000001").glob("*.safetensors")).unlink()
    with run_of(places) as run:
        assert restored(run) == (1, 1)


def test_a_damaged_file_in_the_slow_tier_does_not_matter_while_the_local_one_is_good(places):
    with run_of(places) as run:
        run.save(1, state_of(1))
    spoil(places["slow"] / "step-00000001")
    with run_of(places) as run:
        assert restored(run) == (1, 1)


def test_damage_of_every_copy_is_damage(places):
    with run_of(places) as run:
        run.save(1, state_of(1))
        run.save(2, state_of(2))
        run.wait()
        assert run.steps()[-1] == 2
    for place in places.values():
        spoil(place / "step-00000002")
    with run_of(places) as run:
        with pytest.raises(CorruptError, match="step 2 is damaged"):
            run.restore(state_of(0))
        if 1 in run.steps():
            assert restored(run, on_damage="fallback") == (1, 1)


def test_a_step_that_is_whole_nowhere_is_passed_over_with_a_warning(places, caplog):
    with run_of(places) as run:
        run.save(1, state_of(1))
        run.wait()
        with patch.object(upload, "copy_files", side_effect=StorageError("gone")):
            run.save(2, state_of(2))
            with pytest.raises(StorageError, match="gone"):
                run.wait()
    next((places["local"] / "step-00000002").glob("*.safetensors")).unlink()
    with run_of(places) as run:
        assert restored(run) == (1, 1)
    assert "step 2 was saved to the local tier only" in caplog.text


def test_a_fresh_disk_restores_from_the_slow_tier(places, tmp_path):
    with run_of(places) as run:
        run.save(1, state_of(1))
    with run_of(places | {"local": tmp_path / "fresh"}) as run:
        assert restored(run) == (1, 1)


def test_a_run_that_goes_back_replaces_what_it_left_behind_in_both_tiers(places):
    with run_of(places, keep_local=3) as run:
        for step in (1, 2):
            run.save(step, state_of(step))
            run.wait()
    with run_of(places, keep_local=3) as run:
        assert restored(run, step=1) == (1, 1)
        run.save(2, state_of(22))
    with run_of(places, keep_local=3) as run:
        assert restored(run) == (2, 22)
    assert sk.load(places["slow"] / "step-00000002")["version"] == 22


def test_a_step_is_not_saved_twice_by_mistake(places):
    with run_of(places) as run:
        run.save(1, state_of(1))
        with pytest.raises(ConflictError, match="step 1 was saved by this run already"):
            run.save(1, state_of(2))


def test_peers_need_a_local_tier_and_it_keeps_at_least_one(tmp_path):
    with pytest.raises(InvalidError, match="pass local="):
        sk.Checkpointer(tmp_path, peer_copies=True)
    with pytest.raises(InvalidError, match="keep_local must be at least 1"):
        sk.Checkpointer(tmp_path, local=tmp_path / "local", keep_local=0)

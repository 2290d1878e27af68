"""Does a run come back as its newest whole checkpoint, or as the one that was asked for?"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import xxhash

import shardkeep as sk
from shardkeep import checkpointer
from tests.runs import (
    assert_restores,
    break_off,
    cut_the_manifest,
    data_file,
    empty,
    flip_a_bit,
    remove_a_file,
    save_all,
    state_of,
)

# Restoring


def test_an_empty_run_begins_at_zero_and_touches_nothing(make):
    run, state = make(), empty()
    assert run.restore(state) == 0
    assert state["step"] == -1
    assert run.restored is None
    assert (run.steps(), run.latest()) == ([], None)
    assert not run.path.exists()
    with pytest.raises(sk.NotFoundError, match="no checkpoint yet"):
        run.restore(state, "latest")


def test_a_step_that_is_not_there_is_told_with_those_that_are(make):
    run = make()
    save_all(run, 10, 20)
    with pytest.raises(sk.NotFoundError, match=r"no step 15; there are \[10, 20\]"):
        run.restore(empty(), 15)


def test_a_half_written_checkpoint_is_ignored(make, caplog):
    run = make()
    save_all(run, 10, 20)
    break_off(run.path_of(20))
    assert (run.steps(), run.latest()) == ([10], 10)
    assert_restores(run, 10)
    assert caplog.text == ""
    with pytest.raises(sk.NotFoundError, match="step 20 was never completed"):
        run.restore(empty(), 20)
    run.save(20, state_of(20))
    assert_restores(run, 20)


DAMAGES = [flip_a_bit, cut_the_manifest, remove_a_file]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_newest_is_an_error_that_names_it_and_the_way_out(make, damage):
    run = make()
    save_all(run, 10, 20)
    damage(run.path_of(20))
    for step in (None, "latest"):
        with pytest.raises(sk.CorruptError, match=r"(?s)step 20 is damaged.*on_damage='fallback'"):
            run.restore(empty(), step)
    with pytest.raises(sk.CorruptError, match="step 20 is damaged"):
        run.restore(empty(), 20, on_damage="fallback")


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_newest_is_passed_over_if_told_so_and_never_silently(make, damage, caplog):
    run = make()
    save_all(run, 10, 20, 30)
    damage(run.path_of(20))
    flip_a_bit(run.path_of(30))
    assert_restores(run, 10, on_damage="fallback")
    warnings = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert [one.getMessage()[:15] for one in warnings] == ["step 30 is dama", "step 20 is dama"]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_run_whose_checkpoints_are_all_damaged_does_not_begin_anew(make, damage):
    run = make()
    save_all(run, 10, 20)
    damage(run.path_of(10))
    damage(run.path_of(20))
    with pytest.raises(sk.CorruptError, match=r"(?s)no checkpoint .* is whole.*20.*10"):
        run.restore(empty(), on_damage="fallback")


def test_a_run_that_has_passed_over_damage_goes_on_without_being_told_again(make, caplog):
    run = make()
    save_all(run, 10, 20)
    cut_the_manifest(run.path_of(20))
    assert_restores(run, 10, on_damage="fallback")
    run.save(15, state_of(15))
    again = make()
    assert again.latest() == 15
    assert_restores(again, 15)
    again.save(20, state_of(20))
    assert_restores(make(), 20)


def test_a_checkpoint_of_a_newer_format_is_neither_passed_over_nor_removed(make):
    run = make()
    save_all(run, 1, 2)
    manifest = run.path_of(2) / "manifest.json"
    text = manifest.read_bytes().replace(b'"version":1', b'"version":9', 1)
    body = text[: text.rindex(b',"digest"')]
    manifest.write_bytes(body + f',"digest":"{xxhash.xxh3_128_hexdigest(body)}"}}'.encode())
    for on_damage in ("raise", "fallback"):
        with pytest.raises(sk.VersionError, match=r"step 2 cannot be read(.|\n)*Update shardkeep"):
            run.restore(empty(), on_damage=on_damage)
    assert_restores(run, 1, 1)
    assert run.steps() == [1]
    assert run.prune(leftovers=True, damaged=True).damaged == ()
    assert manifest.exists()


def test_a_state_that_does_not_fit_is_an_error_and_no_reason_to_fall_back(make, caplog):
    run = make()
    save_all(run, 10, 20)
    with pytest.raises(sk.NotFoundError, match=r"not the checkpoint's .*other"):
        run.restore({"other": torch.zeros(3)}, on_damage="fallback")
    with pytest.raises(sk.ShardkeepError, match=r"\(2001,\)|2001"):
        run.restore({"w": torch.zeros(2001), "step": 0}, on_damage="fallback")
    assert caplog.text == ""


def test_options_reach_the_load(make):
    run = make()
    save_all(run, 10)
    state = {"w": torch.zeros(2000, dtype=torch.float64), "more": 7}
    assert run.restore(state, strict=False, cast=True) == 10
    assert torch.equal(state["w"], torch.arange(2000).double() + 10)
    assert run.restored.missing == ["more"]
    flip_a_bit(run.path_of(10))
    assert run.restore(empty(), verify=False) == 10


def test_a_checkpoint_that_is_pruned_while_it_is_read_is_chosen_anew(make, monkeypatch):
    run, other = make(), make(keep_last=1)
    save_all(run, 10, 20)
    load, loads = checkpointer.load, list[Path]()

    def late(path: Path, **options: Any) -> Any:
        loads.append(path)
        if len(loads) == 1:
            other.save(30, state_of(30))
        return load(path, **options)

    monkeypatch.setattr(checkpointer, "load", late)
    assert_restores(run, 30)
    assert loads == [run.path_of(20), run.path_of(30)]


def test_a_checkpoint_whose_files_go_one_by_one_while_it_is_read_is_chosen_anew(make, monkeypatch):
    from shardkeep.transfer import restore

    run = make()
    save_all(run, 10, 20)
    fill, folder = restore.fill_slots, [run.path_of(20)]

    def late(*arguments: Any, **options: Any) -> Any:
        for path in folder:
            path.rename(run.path / ".removed-x")
            data_file(run.path / ".removed-x").unlink()
        folder.clear()
        return fill(*arguments, **options)

    monkeypatch.setattr(restore, "fill_slots", late)
    assert_restores(run, 10)


# Going back


def test_a_run_that_went_back_saves_over_what_it_left_behind(make, caplog):
    save_all(make(), 10, 20, 30)
    with make() as run:
        assert_restores(run, 10, 10)
        assert "newer checkpoints (20 to 30) are left behind" in caplog.text
        run.save(20, {"w": torch.zeros(2000, dtype=torch.int64), "step": 7})
        with pytest.raises(sk.ConflictError, match="holds a checkpoint already"):
            run.save(20, state_of(20))
        assert run.restore(state := empty(), 20) == 20
        assert state["step"] == 7


def test_what_a_run_left_behind_is_spared_and_not_what_it_goes_on_from(make):
    save_all(make(), 10, 20, 30)
    with make(keep_last=2) as run:
        assert_restores(run, 10, 10)
        for step in (11, 12, 13):
            run.save_async(step, state_of(step))
        run.wait()
        assert run.steps() == [12, 13, 20, 30]
        assert run.latest() == 13
    # Also by somebody who has restored nothing.
    assert make(keep_last=1).prune().steps == (12,)
    # Another process comes to the same conclusion, and so on, until it has passed them.
    with make(keep_last=2) as run:
        assert_restores(run, 13)
        run.save(20, state_of(20))
        run.save(25, state_of(25))
        assert run.steps() == [20, 25, 30]
    with make(keep_last=2) as run:
        assert_restores(run, 25)
        save_all(run, 30, 40)
        assert run.steps() == [30, 40]
        assert_restores(run, 40)

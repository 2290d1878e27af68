from unittest.mock import patch

from shardkeep.transfer import council, save
from shardkeep.transfer.council import StoreCouncil
from torture.hangs import Hangs, Limits

_HASTY = Limits(timeout=1.0, slack=30.0, patience=5.0)


def test_whoever_is_left_comes_to_one_outcome_and_names_who_is_gone() -> None:
    tally = Hangs().run("short", 0, print)
    assert tally.violations == []
    assert tally.cases >= 8


def _violations_of(case: str) -> list[str]:
    tally = Hangs(_HASTY).run("short", 0, print, case)
    assert tally.cases == 1
    return tally.violations


def test_a_question_to_the_store_without_an_end_is_found_out() -> None:
    with patch.object(council, "bounded", lambda store, seconds_left: store):
        (found,) = _violations_of("stop:store:2:before-the-write")
    assert "waits for ever" in found


def test_a_rank_that_takes_an_old_save_for_its_own_is_found_out() -> None:
    with patch.object(StoreCouncil, "_has_seat", lambda self: True):
        (found,) = _violations_of("restart:rank:2:before-it-leaves")
    assert "takes an old save for its own" in found


def test_a_rank_that_removes_files_which_may_be_committed_is_found_out() -> None:
    with patch.object(save._Save, "_is_undone", lambda self, error: True):
        (found,) = _violations_of("stop:rank:0:before-the-commit")
    assert "told that nothing was committed" in found or "safetensors" in found

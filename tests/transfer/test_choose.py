"""Which step does a restore take, and what does it say about those that it passes over?"""

from __future__ import annotations

from typing import Any

import pytest

from shardkeep.errors import CorruptError, InvalidError, NotFoundError, RankFailedError
from shardkeep.storage.shelf import LocalShelf
from shardkeep.transfer import choose
from shardkeep.transfer.choose import Choice, Wish, agree_on_step, best_step
from shardkeep.transfer.council import SoloCouncil
from shardkeep.transfer.steps import Condition, StepRecord
from tests.transfer.worlds import run_ranks

SHELF = LocalShelf("/nowhere")
DAMAGED = CorruptError("bytes 0 to 9 are not what was written")
GONE = NotFoundError("it is not there")
UNFIT = ValueError("no place for it")


def record(step: int, condition: Condition = "committed", **more: Any) -> StepRecord:
    problem = "a file is missing" if condition == "damaged" else ""
    return StepRecord(step, f"step-{step}", condition, problem, f"id{step}", **more)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> list[StepRecord]:
    records = [record(10), record(20), record(30)]
    monkeypatch.setattr(choose, "read_steps", lambda shelf: records)
    return records


def chosen(wish: Wish, best: Any = None) -> Choice:
    return agree_on_step(SoloCouncil(), SHELF, wish, best)


@pytest.mark.parametrize("step", [None, "latest"])
def test_the_newest_is_taken(run, step):
    assert chosen(Wish(step, "raise")) == Choice(30)


def test_a_run_without_checkpoints_begins_at_the_beginning(run):
    run[:] = [record(5, "half-written")]
    assert chosen(Wish(None, "raise")) == Choice(None)
    with pytest.raises(NotFoundError, match="no checkpoint yet"):
        chosen(Wish("latest", "raise"))


def test_what_was_never_committed_is_as_if_it_were_not_there(run):
    run.append(record(40, "half-written"))
    assert chosen(Wish(None, "raise")) == Choice(30)
    with pytest.raises(NotFoundError, match="step 40 was never completed"):
        chosen(Wish(40, "raise"))


def test_an_older_step_is_taken_with_a_warning_about_what_it_leaves_behind(run):
    choice = chosen(Wish(10, "raise"))
    assert (choice.step, choice.newer) == (10, {20: "id20", 30: "id30"})
    (warning,) = choice.warnings
    assert "newer checkpoints (20 to 30) are left behind" in warning


def test_a_step_that_is_not_there_is_told_with_those_that_are(run):
    with pytest.raises(NotFoundError, match=r"no step 25; there are \[10, 20, 30\]"):
        chosen(Wish(25, "raise"))
    run.clear()
    with pytest.raises(NotFoundError, match="no step 25; there are none"):
        chosen(Wish(25, "raise"))


@pytest.mark.parametrize("step", [True, 1.5, "newest"])
def test_what_is_no_step_is_refused(run, step):
    with pytest.raises(InvalidError, match="'latest', 'best' or None"):
        chosen(Wish(step, "raise"))


def test_an_unknown_way_to_meet_damage_is_refused():
    on_damage: Any = "ignore"
    with pytest.raises(InvalidError, match="'raise' or 'fallback', got 'ignore'"):
        Wish(None, on_damage)


def test_the_best_is_taken_by_its_metric(run):
    run[:] = [record(10, metrics={"loss": 1.0}), record(20, metrics={"loss": 2.0}), record(30)]
    assert chosen(Wish("best", "raise"), ("loss", "min", 1)).step == 10
    assert chosen(Wish("best", "raise"), ("loss", "max", 1)).step == 20
    with pytest.raises(NotFoundError, match="no checkpoint has the metric"):
        chosen(Wish("best", "raise"), ("accuracy", "max", 1))
    with pytest.raises(InvalidError, match="only with keep_best"):
        chosen(Wish("best", "raise"))


def test_a_damaged_one_is_not_the_best(run):
    run[:] = [record(10, metrics={"loss": 2.0}), record(20, "damaged", metrics={"loss": 1.0})]
    assert best_step(run, ("loss", "min", 1)) == 10


class TestDamage:
    def test_that_is_seen_is_an_error_that_names_the_way_out(self, run):
        run[2] = record(30, "damaged")
        with pytest.raises(CorruptError, match=r"step 30 is damaged: a file is missing\n.*'fallb"):
            chosen(Wish(None, "raise"))

    def test_that_the_load_found_is_an_error_that_names_the_way_out(self, run):
        with pytest.raises(CorruptError, match=r"step 30 is damaged: bytes 0 to 9 .*\n.*'fallb"):
            chosen(Wish("latest", "raise").after(30, DAMAGED))

    def test_is_passed_over_if_told_so_with_a_warning_for_each_step(self, run):
        run[1] = record(20, "damaged")
        choice = chosen(Wish(None, "fallback").after(30, DAMAGED))
        assert choice.step == 10
        assert choice.newer == {20: "id20", 30: "id30"}
        assert choice.warnings == (
            f"step 30 is damaged and was passed over: {DAMAGED}",
            "step 20 is damaged and was passed over: a file is missing",
        )

    def test_of_each_step_is_told_in_its_own_words(self, run):
        wish = Wish(None, "fallback").after(30, DAMAGED).after(20, CorruptError("another"))
        assert [text.split(": ")[1] for text in chosen(wish).warnings] == [str(DAMAGED), "another"]

    def test_of_all_steps_is_an_error_and_no_beginning(self, run):
        run[:] = [record(10, "damaged"), record(20)]
        with pytest.raises(CorruptError, match=r"(?s)no checkpoint .* is whole.*step 20.*step 10"):
            chosen(Wish(None, "fallback").after(20, DAMAGED))

    @pytest.mark.parametrize("on_damage", ["raise", "fallback"])
    def test_of_a_step_that_was_asked_for_by_number_is_an_error(self, run, on_damage):
        with pytest.raises(CorruptError, match="step 20 is damaged: bytes 0 to 9"):
            chosen(Wish(20, on_damage).after(20, DAMAGED))
        run[1] = record(20, "damaged")
        with pytest.raises(CorruptError, match="step 20 is damaged: a file is missing"):
            chosen(Wish(20, on_damage))

    def test_that_the_run_has_left_behind_is_in_nobodys_way(self, run):
        run[1:] = [record(20, left_behind={30: "id30"}), record(30, "damaged")]
        choice = chosen(Wish(None, "raise"))
        assert (choice.step, choice.newer, choice.warnings) == (20, {30: "id30"}, ())


def test_a_state_that_does_not_fit_is_not_tried_with_another_step(run):
    for error in (UNFIT, GONE):
        choice = chosen(Wish(None, "fallback").after(30, error))
        assert (choice.step, choice.gives_up) == (30, True)


def test_a_step_that_went_away_while_it_was_loaded_is_chosen_anew(run):
    run[:] = [record(30), record(40)]
    assert chosen(Wish(None, "raise").after(20, GONE)) == Choice(40)
    with pytest.raises(NotFoundError, match="no step 20"):
        chosen(Wish(20, "raise").after(20, GONE))


@pytest.mark.parametrize(
    ("errors", "found"),
    [
        ([GONE, GONE, DAMAGED], Choice(20, {30: "id30"})),
        ([DAMAGED, UNFIT, DAMAGED], Choice(30, gives_up=True)),
        ([GONE, GONE, GONE], Choice(30, gives_up=True)),
    ],
)
def test_what_one_rank_has_met_decides_for_all(run, errors, found):
    def act(rank: int, council: Any) -> Choice:
        return agree_on_step(council, SHELF, Wish(None, "fallback").after(30, errors[rank]), None)

    outcomes = run_ranks(act, 3)
    assert len(outcomes) == 3
    for choice in outcomes.values():
        assert isinstance(choice, Choice), choice
        assert (choice.step, choice.newer) == (found.step, found.newer)
        assert choice.gives_up == found.gives_up


def test_what_the_chair_cannot_find_is_raised_on_all_ranks(run):
    def act(rank: int, council: Any) -> str:
        kind = NotFoundError if rank == 0 else RankFailedError
        with pytest.raises(kind, match=r"no step 7; there are \[10, 20, 30\]") as caught:
            agree_on_step(council, SHELF, Wish(7, "raise"), None)
        assert isinstance(caught.value, NotFoundError)
        return caught.value.kind

    assert run_ranks(act, 3) == {0: "not_found", 1: "rank_failed", 2: "rank_failed"}

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from shardkeep.plan.retention import Retention
from shardkeep.state.staging import Stager
from shardkeep.storage.file_calls import FileCalls
from shardkeep.transfer import prune, read, snapshots
from shardkeep.transfer.choose import Chooser
from shardkeep.transfer.save import _Save
from torture.state_machine import run_batch

Planted = Callable[[], AbstractContextManager[Any]]


@pytest.mark.parametrize("batch", range(3))
def test_a_dict_knows_what_is_there_after_any_sequence(batch: int) -> None:
    steps, wrong = run_batch(0, 30, False, batch)
    assert steps > 100
    assert wrong == ""


def ignores_digests() -> Any:
    return patch.object(read, "require_blocks", lambda *_: None)


def drops_the_newest_steps() -> Any:
    dropped = Retention.dropped

    def newest(self: Retention, steps: Sequence[Any]) -> list[int]:
        numbers = sorted(one.step for one in steps)
        return numbers[: len(dropped(self, steps)) + 1][-1:]

    return patch.object(Retention, "dropped", newest)


def prunes_what_is_in_use() -> Any:
    return patch.object(prune, "_names_in_use", lambda _: set())


def saves_the_live_state_in_background() -> Any:
    class Sharing(Stager):
        def copy(self, memory: Any) -> Any:
            snapshot = super().copy(memory)
            snapshot._tree = memory
            return snapshot

    return patch.object(snapshots, "_stager", Sharing())


def removes_the_old_files_before_the_commit() -> Any:
    chair_commit = _Save._chair_commit

    def hasty(self: _Save, agreement: Any) -> Any:
        self._remove_replaced()
        return chair_commit(self, agreement)

    return patch.object(_Save, "_chair_commit", hasty)


def passes_over_damage_without_being_told() -> Any:
    newest = Chooser._newest

    def lenient(self: Chooser) -> Any:
        self._wish = replace(self._wish, on_damage="fallback")
        return newest(self)

    return patch.object(Chooser, "_newest", lenient)


def writes_over_what_others_read() -> Any:
    return patch.object(FileCalls, "is_mine_alone", lambda *_: True)


@pytest.mark.parametrize(
    "planted",
    [
        writes_over_what_others_read,
        ignores_digests,
        drops_the_newest_steps,
        prunes_what_is_in_use,
        saves_the_live_state_in_background,
        removes_the_old_files_before_the_commit,
        passes_over_damage_without_being_told,
    ],
)
def test_a_mistake_is_found_out(planted: Planted) -> None:
    with planted():
        assert any(run_batch(0, 30, False, batch)[1] for batch in range(8))

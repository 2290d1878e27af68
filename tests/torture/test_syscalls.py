from unittest.mock import patch

import pytest

from shardkeep.storage import Storage
from shardkeep.transfer import prune, save
from shardkeep.transfer.commit import MANIFEST
from torture.syscalls import Syscalls
from torture.tracing import cannot_trace


@pytest.fixture(scope="module", autouse=True)
def _traces() -> None:
    if why := cannot_trace():
        pytest.skip(why)


def test_a_rank_that_is_killed_at_a_system_call_leaves_the_old_checkpoint_or_the_new_one() -> None:
    tally = Syscalls().run("short", 0, print)
    assert tally.violations == []
    assert tally.facts["kills that fell"]


def _violation_of(case: str) -> str:
    (found,) = Syscalls().run("short", 0, print, case).violations
    return found


def _commit_in_two_steps(storage: Storage, manifest: bytes, replaced: bytes | None) -> None:
    storage.delete(MANIFEST, missing_ok=True)
    storage.put_if_absent(MANIFEST, manifest)


def test_a_commit_in_two_steps_is_found_out() -> None:
    with patch.object(save, "commit", _commit_in_two_steps):
        assert "version 0 is there" in _violation_of("overwrite:sync:0:first:linkat:1")


def test_a_prune_that_forgets_temporary_files_is_found_out() -> None:
    with patch.object(prune, "_is_left_over", lambda entry, working: not entry.is_temporary):
        assert "prune leaves" in _violation_of("fresh:sync:0:first:linkat:1")

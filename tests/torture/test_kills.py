import time
from unittest.mock import patch

from shardkeep.storage import Storage
from shardkeep.transfer import save
from shardkeep.transfer.commit import MANIFEST
from torture.kills import Kills


def test_an_overwrite_that_is_torn_apart_leaves_the_old_checkpoint_or_the_new_one() -> None:
    tally = Kills().run("short", 1, print)
    assert tally.violations == []
    # The kills fell where they hurt: into saves of each kind, before and after the commit.
    kinds = {"2 ranks", "2 ranks, async", "4 ranks", "4 ranks, async"}
    assert tally.facts.keys() == kinds | {"old", "new", "with leftovers", "with survivors"}


def _commit_in_two_steps(storage: Storage, manifest: bytes, replaced: bytes | None) -> None:
    storage.delete(MANIFEST, missing_ok=True)
    time.sleep(0.01)
    storage.put_if_absent(MANIFEST, manifest)


def test_a_commit_in_two_steps_is_found_out() -> None:
    with patch.object(save, "commit", _commit_in_two_steps):
        assert Kills().run("short", 1, print).violations

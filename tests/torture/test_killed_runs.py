import os
import time
from unittest.mock import patch

from shardkeep.storage import local_commit
from shardkeep.storage.folder import Folder
from torture.killed_runs import KilledRuns


def test_a_run_that_is_killed_goes_on_from_its_newest_checkpoint() -> None:
    tally = KilledRuns().run("short", 1, print)
    assert tally.violations == []
    # The kills fell where they hurt: into saves of each kind, and into removals.
    kinds = {"1 ranks", "1 ranks, async", "2 ranks", "2 ranks, async"}
    assert tally.facts.keys() == kinds | {
        "newest finished", "newest one later", "half-written ones", "half-removed ones"
    }  # fmt: skip


def _put_in_place(folder: Folder, key: str, data: bytes, *, lock_timeout: float) -> bool:
    """As if a manifest was written where it is read."""
    fd = folder.create(key)
    os.write(fd, data[:100])
    time.sleep(0.01)
    os.write(fd, data[100:])
    os.close(fd)
    return True


def test_a_manifest_that_is_written_in_its_place_is_found_out() -> None:
    with patch.object(local_commit, "put_if_absent", _put_in_place):
        assert KilledRuns().run("short", 1, print).violations

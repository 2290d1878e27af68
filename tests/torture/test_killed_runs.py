from pathlib import Path
from unittest.mock import patch

from shardkeep.storage.shelf import LocalShelf
from torture.killed_runs import KilledRuns


def test_a_run_that_is_killed_goes_on_from_its_newest_checkpoint() -> None:
    tally = KilledRuns().run("short", 1, print)
    assert tally.violations == []
    # The kills fell where they hurt: into saves of each kind, and into removals.
    kinds = {"1 ranks", "1 ranks, async", "2 ranks", "2 ranks, async"}
    assert tally.facts.keys() == kinds | {
        "newest finished", "newest one later", "half-written ones", "half-removed ones"
    }  # fmt: skip


def _remove_in_place(self: LocalShelf, name: str) -> None:
    for path in sorted(Path(self.path(name)).iterdir()):
        path.unlink()
    self.path(name).rmdir()


def test_a_removal_that_does_not_take_the_name_first_is_found_out() -> None:
    with patch.object(LocalShelf, "remove", _remove_in_place):
        assert KilledRuns().run("short", 1, print).violations

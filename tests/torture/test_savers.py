import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

from shardkeep.storage import Storage
from shardkeep.transfer import prune, save
from shardkeep.transfer.commit import MANIFEST, commit, committed_manifest
from torture.savers import Savers


def test_of_many_savers_one_stands_while_others_read_and_prune() -> None:
    tally = Savers().run("short", 0, print)
    assert tally.violations == []
    assert tally.cases == 12
    assert tally.facts["whole loads"]


# The files of a save lie there uncommitted for so long that the others meet them on any machine.
_WINDOW = 0.05

Commit = Callable[[Storage, bytes, bytes | None], None]


@contextmanager
def slow(how: Commit) -> Iterator[None]:
    """Every save waits before it commits in this way."""

    def commit_late(storage: Storage, manifest: bytes, replaced: bytes | None) -> None:
        time.sleep(_WINDOW)
        how(storage, manifest, replaced)

    with patch.object(save, "commit", commit_late):
        yield


def _commit_after_prune(storage: Storage, manifest: bytes, replaced: bytes | None) -> None:
    """As if one that prunes always came when files are written and not yet committed."""
    prune.prune_leftovers(storage, dry_run=False)
    commit(storage, manifest, replaced)


def test_a_prune_that_does_not_look_for_saves_under_way_is_found_out() -> None:
    blind = patch.object(prune, "saves_under_way", lambda storage: set[str]())
    with patch.object(save, "commit", _commit_after_prune):
        assert Savers().run("short", 1, print).violations == []
        with blind:
            assert Savers().run("short", 1, print).violations


def _commit_anyway(storage: Storage, manifest: bytes, replaced: bytes | None) -> None:
    """As if the manifest that was seen at first did not matter."""
    while not storage.put_if_absent(MANIFEST, manifest):
        seen = committed_manifest(storage)
        if seen is not None and storage.replace(MANIFEST, manifest, expected=seen):
            return


def test_a_commit_that_takes_the_place_of_any_other_is_found_out() -> None:
    with slow(_commit_anyway):
        assert Savers().run("short", 0, print).violations

from contextlib import suppress
from unittest.mock import patch

from shardkeep.storage import local_read
from shardkeep.storage.failures import too_short
from shardkeep.storage.folder import Folder
from shardkeep.storage.local_sink import LocalSink
from torture.faults import Faults


def test_a_full_disk_and_failed_calls_cost_nothing_and_are_told() -> None:
    tally = Faults().run("short", 0, print)
    assert tally.violations == []
    assert tally.cases >= 60


def _violation_of(case: str) -> str:
    (found,) = Faults().run("short", 0, print, case).violations
    return found


def test_a_failed_fsync_of_a_folder_that_is_passed_over_is_found_out() -> None:
    def sync(self: Folder) -> None:
        with suppress(OSError):
            self.calls.fsync(self.fd)

    with patch.object(Folder, "sync", sync):
        assert "after a failed fsync" in _violation_of("save:fsync:3:EIO:refused")


def test_a_failed_fsync_of_a_file_that_is_tried_again_is_found_out() -> None:
    finish = LocalSink.finish

    def finish_anyway(self: LocalSink) -> None:
        try:
            finish(self)
        except OSError:
            self._failure = None
            finish(self)

    with patch.object(LocalSink, "finish", finish_anyway):
        assert "after a failed fsync" in _violation_of("save:fsync:2:EIO:refused")


def test_an_error_that_does_not_tell_the_free_space_is_found_out() -> None:
    with patch.object(Folder, "_free_space", lambda self, error: ""):
        found = Faults().run("short", 0, print, "full:1:40")
    if found.cases:
        assert "does not speak of space" in found.violations[0]
    else:
        assert "full: not asked" in found.facts


def test_an_error_of_a_read_that_is_taken_for_the_end_of_the_file_is_found_out() -> None:
    read_into = local_read.read_into

    def cut_off(folder: Folder, fd: int, key: str, offset: int, views: list[memoryview]) -> None:
        try:
            read_into(folder, fd, key, offset, views)
        except OSError as error:
            raise too_short(folder.path_of(key), offset, 1, 0) from error

    with patch("shardkeep.storage.local.read_into", cut_off):
        assert "instead of a StorageError" in _violation_of("load:preadv:1")

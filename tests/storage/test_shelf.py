"""Does what is taken off a shelf go at once, and for good?"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from shardkeep.errors import NotFoundError, StorageError
from shardkeep.storage.file_calls import FileCalls
from shardkeep.storage.shelf import LocalShelf


@pytest.fixture
def shelf(tmp_path: Path) -> LocalShelf:
    for name in ("b", "a", ".hidden"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    return LocalShelf(tmp_path)


def test_names_are_those_of_folders_in_order(shelf: LocalShelf):
    root = Path(shelf.location)
    (root / "file").write_text("")
    (root / "link").symlink_to(root / "a")
    assert shelf.names() == ["a", "b"]


def test_a_shelf_that_is_not_there_is_empty(tmp_path: Path):
    shelf = LocalShelf(tmp_path / "none")
    assert shelf.names() == []
    shelf.sweep()
    shelf.remove("a")
    assert not (tmp_path / "none").exists()


def test_a_shelf_that_is_a_file_is_an_error(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="listing the run"):
        LocalShelf(tmp_path / "file").names()


def test_what_is_removed_is_gone_and_leaves_nothing(shelf: LocalShelf):
    shelf.remove("a")
    assert sorted(os.listdir(shelf.location)) == [".hidden", "b"]
    with pytest.raises(NotFoundError, match="no folder"):
        shelf.open("a")
    shelf.remove("a")


def test_a_removal_that_was_broken_off_is_no_checkpoint_and_is_swept(
    shelf: LocalShelf, monkeypatch: pytest.MonkeyPatch
):
    def broken(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt("now")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", broken)
        with pytest.raises(KeyboardInterrupt, match="now"):
            shelf.remove("a")
    assert shelf.names() == ["b"]
    (left,) = Path(shelf.location).glob(".removed-*")
    assert (left / "file").read_text() == "a"

    shelf.sweep()
    assert sorted(os.listdir(shelf.location)) == [".hidden", "b"]


def test_a_name_that_was_removed_can_be_used_again(shelf: LocalShelf):
    shelf.remove("a")
    shelf.path("a").mkdir()
    shelf.remove("a")
    assert shelf.names() == ["b"]


def test_what_cannot_be_removed_is_told(shelf: LocalShelf, monkeypatch: pytest.MonkeyPatch):
    def refused(self: FileCalls, name: str, new_name: str, *, dir_fd: int) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(FileCalls, "rename", refused)
    with pytest.raises(StorageError, match="removing a: Permission denied"):
        shelf.remove("a")
    assert shelf.names() == ["a", "b"]


def test_a_folder_has_changed_when_a_file_in_it_has(shelf: LocalShelf):
    folder = shelf.path("a")
    os.utime(folder / "file", (2000, 2000))
    os.utime(folder, (1000, 1000))
    assert shelf.changed_at("a") == 2000
    os.utime(folder, (3000, 3000))
    assert shelf.changed_at("a") == 3000
    assert shelf.changed_at("none") == 0

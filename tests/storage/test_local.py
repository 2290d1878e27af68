"""The local storage does what every storage does, and what only files have."""

import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shardkeep.errors import ConflictError, CorruptError, InvalidError, NotFoundError
from shardkeep.storage import LocalStorage, Storage
from shardkeep.testing.storage_suite import (
    StorageSuite,
    at_once,
    distinct_bytes,
    read_all,
    write_object,
)
from tests.storage.faulty_calls import FaultyCalls


class TestLocalStorage(StorageSuite):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> Iterator[Storage]:
        with LocalStorage(tmp_path / "ckpt", create=True, durable=False) as storage:
            yield storage

    def second(self, storage: Storage) -> Storage:
        return LocalStorage(storage.location, durable=False)


class TestDurableLocalStorage(TestLocalStorage):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> Iterator[Storage]:
        with LocalStorage(tmp_path / "ckpt", create=True, durable=True) as storage:
            yield storage


class TestWithoutHardLinks(TestLocalStorage):
    """As on exFAT, or on Google Drive in a notebook."""

    @pytest.fixture
    def storage(self, tmp_path: Path) -> Iterator[Storage]:
        with self.open(str(tmp_path / "ckpt")) as storage:
            yield storage

    def second(self, storage: Storage) -> Storage:
        return self.open(storage.location)

    def open(self, path: str) -> LocalStorage:
        calls = FaultyCalls()
        calls.always_fail("link", 1)  # EPERM
        return LocalStorage(path, create=True, durable=False, calls=calls)


# What is in the way


def make_link(path: Path) -> None:
    path.symlink_to("/etc/hostname")


def make_device(path: Path) -> None:
    try:
        os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root may make a device")


def make_socket(path: Path) -> None:
    # Relative: a socket's path may have 107 bytes only.
    before = os.getcwd()
    os.chdir(path.parent)
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(before)


OBSTACLES: dict[str, Callable[[Path], object]] = {
    "a symbolic link": make_link,
    "a folder": Path.mkdir,
    "a pipe": os.mkfifo,
    "a socket": make_socket,
    "a device": make_device,
}
READERS: dict[str, Callable[[LocalStorage], object]] = {
    "read": lambda storage: storage.read("x", 0, 1),
    "read_into": lambda storage: storage.read_into("x", 0, [bytearray(1)]),
    "get": lambda storage: storage.get("x", max_nbytes=1),
    "size": lambda storage: storage.size("x"),
    "map": lambda storage: storage.map("x"),
    "replace": lambda storage: storage.replace("x", b"new", expected=b"old"),
}


@pytest.mark.parametrize("what", OBSTACLES)
@pytest.mark.parametrize("verb", READERS)
def test_what_is_no_file_is_refused_unopened(
    storage: LocalStorage, folder: Path, calls: FaultyCalls, what: str, verb: str
):
    OBSTACLES[what](folder / "x")

    with pytest.raises(CorruptError, match=f"{folder}/x is {what}: a checkpoint has regular files"):
        READERS[verb](storage)

    assert "open x" not in calls.log
    assert [path.name for path in folder.iterdir()] == ["x"]


@pytest.mark.parametrize("what", [what for what in OBSTACLES if what != "a folder"])
@pytest.mark.parametrize("verb", [verb for verb in READERS if verb != "size"])
def test_what_takes_a_files_place_after_the_look_is_refused_without_waiting(
    storage: LocalStorage, folder: Path, calls: FaultyCalls, what: str, verb: str
):
    write_object(storage, "x", b"old")

    def swap(name: str, *_: object) -> None:
        if name == "x":
            (folder / "x").unlink()
            OBSTACLES[what](folder / "x")

    calls.before("open", swap)
    with pytest.raises(CorruptError, match=f"{folder}/x is .*a checkpoint has regular files only"):
        READERS[verb](storage)


@pytest.mark.parametrize("what", OBSTACLES)
def test_nothing_is_written_through_what_is_in_the_way(
    storage: LocalStorage, folder: Path, tmp_path: Path, what: str
):
    OBSTACLES[what](folder / "x")
    (folder / "dangling").symlink_to(tmp_path / "outside")

    for key in ("x", "dangling"):
        with pytest.raises(ConflictError, match=f"{key} is already there"):
            storage.create(key)
        assert not storage.put_if_absent(key, b"value")
    assert not (tmp_path / "outside").exists()


def test_deleting_a_link_leaves_its_target(storage: LocalStorage, folder: Path, tmp_path: Path):
    (tmp_path / "outside").write_bytes(b"mine")
    (folder / "x").symlink_to(tmp_path / "outside")

    storage.delete("x")

    assert not (folder / "x").is_symlink()
    assert (tmp_path / "outside").read_bytes() == b"mine"


def test_only_files_with_proper_names_are_listed(storage: LocalStorage, folder: Path):
    for index, make in enumerate(OBSTACLES.values()):
        make(folder / f"obstacle{index}")
    with open(os.fsencode(folder) + b"/\xff\xfe", "wb"):
        pass
    (folder / "back\\slash").touch()
    for name in ("größe", "new\nline", "manifest.json", ".nfs0001"):
        (folder / name).write_bytes(b"123")

    assert storage.list() == [(".nfs0001", 3), ("größe", 3), ("manifest.json", 3), ("new\nline", 3)]


def test_a_file_that_vanishes_while_listing_is_left_out(
    storage: LocalStorage, folder: Path, calls: FaultyCalls
):
    for key in ("a", "b"):
        write_object(storage, key, b"1")
    calls.before("lstat", lambda name: (folder / "a").unlink(missing_ok=True))

    assert storage.list() == [("b", 1)]


def test_threads_may_list_at_once(storage: LocalStorage):
    for index in range(200):
        write_object(storage, f"{index:03}", b"")

    assert {len(found) for found in at_once(lambda _: storage.list())} == {200}


# The folder


def test_a_folder_is_made_with_its_parents_each_made_durable(tmp_path: Path, calls: FaultyCalls):
    LocalStorage(tmp_path / "a" / "b", create=True, calls=calls).close()

    assert [line for line in calls.log if not line.startswith(("close", "fstat"))] == [
        f"mkdir {tmp_path}/a/b",
        f"mkdir {tmp_path}/a",
        f"open {tmp_path}",
        "fsync",
        f"mkdir {tmp_path}/a/b",
        f"open {tmp_path}/a",
        "fsync",
        f"open {tmp_path}/a/b",
    ]


def test_a_folder_that_another_has_just_made_is_made_durable_too(
    tmp_path: Path, calls: FaultyCalls
):
    (tmp_path / "a").mkdir()
    LocalStorage(tmp_path / "a", create=True, calls=calls).close()

    assert calls.log[1:3] == [f"open {tmp_path}", "fsync"]


def test_many_may_make_the_same_folder(tmp_path: Path):
    storages = at_once(lambda _: LocalStorage(tmp_path / "a" / "b" / "c", create=True))
    for storage in storages:
        storage.close()


@pytest.mark.parametrize("create", [False, True])
def test_a_file_is_not_a_folder(tmp_path: Path, create: bool):
    (tmp_path / "file").touch()

    with pytest.raises(InvalidError, match="file is not a folder; a checkpoint is one"):
        LocalStorage(tmp_path / "file", create=create)
    with pytest.raises(InvalidError, match=r"not a folder|part of the path is a file"):
        LocalStorage(tmp_path / "file" / "ckpt", create=create)


@pytest.mark.parametrize("path", ["link", "link/ckpt"])
@pytest.mark.parametrize("create", [False, True])
def test_a_link_to_nowhere_is_no_folder(tmp_path: Path, path: str, create: bool):
    (tmp_path / "link").symlink_to("nowhere")

    with pytest.raises((NotFoundError, OSError), match=r"there is no folder|making the folder"):
        LocalStorage(tmp_path / path, create=create)
    assert not (tmp_path / "nowhere").exists()


def test_a_path_means_the_folder_it_meant_when_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    storage = LocalStorage("ckpt", create=True)
    monkeypatch.chdir("/")
    write_object(storage, "a", b"1")

    assert storage.location == f"{tmp_path}/ckpt"
    assert (tmp_path / "ckpt" / "a").read_bytes() == b"1"


def test_a_folder_put_in_its_place_is_not_entered(
    storage: LocalStorage, folder: Path, tmp_path: Path
):
    write_object(storage, "a", b"mine")
    folder.rename(tmp_path / "moved")
    (tmp_path / "trap").mkdir()
    (tmp_path / "trap" / "a").write_bytes(b"evil")
    folder.symlink_to(tmp_path / "trap")

    assert read_all(storage, "a") == b"mine"
    assert storage.put_if_absent("b", b"mine too")
    assert (tmp_path / "moved" / "b").exists()
    assert not (tmp_path / "trap" / "b").exists()


def test_a_closed_storage_says_so(storage: LocalStorage):
    write_object(storage, "a", b"1")
    storage.close()
    storage.close()

    for verb in (READERS["get"], LocalStorage.list, LocalStorage.sync):
        with pytest.raises(InvalidError, match="is closed: open it again"):
            verb(storage)


# Reading


def test_few_files_stay_open_however_many_are_read(
    storage: LocalStorage, folder: Path, open_fds: Callable[[], int]
):
    contents = {f"{i}": distinct_bytes(400)[i:] for i in range(40)}
    for key, content in contents.items():
        write_object(storage, key, content)
    before = open_fds()
    reader = LocalStorage(folder, max_open_files=5)

    def read(index: int) -> bool:
        keys = [f"{(index * 7 + turn) % 40}" for turn in range(100)]
        return all(reader.read(key, 3, 50) == contents[key][3:53] for key in keys)

    assert all(at_once(read))
    assert open_fds() == before + 1 + 5
    reader.close()
    assert open_fds() == before


def test_a_file_that_is_read_in_pieces_is_opened_once(storage: LocalStorage, calls: FaultyCalls):
    write_object(storage, "a", distinct_bytes(1000))
    calls.log.clear()
    for offset in range(0, 1000, 100):
        storage.read_into("a", offset, [bytearray(100)])

    assert calls.log.count("open a") == 1


def test_a_file_that_is_kept_open_is_looked_up_once(storage: LocalStorage, calls: FaultyCalls):
    content = distinct_bytes(1000)
    write_object(storage, "a", content)
    buffer = bytearray(1000)
    calls.log.clear()
    with storage.reading("a") as read:
        for offset in range(0, 1000, 100):
            read(offset, [memoryview(buffer)[offset : offset + 100]])

    assert buffer == content
    assert [line.split()[0] for line in calls.log].count("lstat") == 1
    with storage.reading("a") as read, pytest.raises(CorruptError, match="ends"):
        read(950, [memoryview(buffer)[:100]])


def test_a_file_pushed_out_while_it_is_read_stays_open_until_then(
    folder: Path, storage: LocalStorage, calls: FaultyCalls
):
    write_object(storage, "a", b"first")
    write_object(storage, "b", b"other")
    reader = LocalStorage(folder, max_open_files=1, calls=calls)
    pushed = threading.Event()

    def push_out(*_: object) -> None:
        if not pushed.is_set():
            pushed.set()
            reader.read_into("b", 0, [bytearray(5)])

    calls.before("preadv", push_out)
    buffer = bytearray(5)
    reader.read_into("a", 0, [buffer])

    assert (pushed.is_set(), buffer) == (True, b"first")


def test_a_storage_that_nobody_closes_is_closed_all_the_same(
    folder: Path, storage: LocalStorage, open_fds: Callable[[], int]
):
    write_object(storage, "a", b"1")
    before = open_fds()
    forgotten = LocalStorage(folder)
    forgotten.read("a", 0, 1)
    sink = forgotten.create("b")
    del forgotten

    with sink:
        sink.write(0, [b"2"])
    del sink
    assert read_all(storage, "b") == b"2"
    assert open_fds() == before


def test_a_deleted_file_gives_its_space_back(storage: LocalStorage, open_fds: Callable[[], int]):
    before = open_fds()
    write_object(storage, "a", b"1")
    storage.read("a", 0, 1)
    storage.delete("a")

    assert open_fds() == before


def test_offsets_beyond_four_gigabytes_work(storage: LocalStorage, folder: Path):
    offset = 5 * 2**30 + 3
    with storage.create("a") as sink:
        sink.write(offset, [b"far", b" away"])

    assert storage.size("a") == offset + 8
    assert storage.read("a", offset - 2, 10) == b"\0\0far away"
    assert os.stat(folder / "a").st_blocks < 1000


def test_the_umask_decides_who_may_read(storage: LocalStorage, folder: Path):
    before = os.umask(0o027)
    try:
        write_object(storage, "a", b"1")
        storage.put_if_absent("b", b"1")
    finally:
        os.umask(before)

    assert {oct(stat.S_IMODE(path.stat().st_mode)) for path in folder.iterdir()} == {"0o640"}

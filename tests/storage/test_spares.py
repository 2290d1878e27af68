"""Spare files are written again as if they were fresh, and never while anybody can see them."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from shardkeep.errors import ConflictError
from shardkeep.manifest import file_name, new_save_id
from shardkeep.storage import LocalStorage, Storage, spares
from shardkeep.storage.file_calls import FileCalls
from shardkeep.storage.shelf import LocalShelf
from shardkeep.storage.spares import SPARES
from shardkeep.testing.storage_suite import StorageSuite, at_once, read_all
from tests.storage.faulty_calls import FaultyCalls

OLD = b"\xff" * 5000
KEY, OTHER = (file_name("0123456789abcdef", 0, number) for number in (0, 1))


def put_spares(root: Path, count: int, content: bytes = OLD) -> list[Path]:
    (root / SPARES).mkdir(parents=True, exist_ok=True)
    made = [root / SPARES / file_name(new_save_id(), 0, number) for number in range(count)]
    for path in made:
        path.write_bytes(content)
    return made


@pytest.fixture
def root(tmp_path: Path) -> Path:
    put_spares(tmp_path, 1)
    with LocalStorage(tmp_path / "try", create=True, recycled_from=tmp_path) as storage:
        write(storage, KEY, b"1")
    if os.listdir(tmp_path / SPARES):
        pytest.skip("files are not recycled on this file system")
    return tmp_path


def write(storage: LocalStorage, key: str, content: bytes, *, offset: int = 0) -> None:
    with storage.create(key) as sink:
        sink.write(offset, [content])


def inode(path: Path) -> int:
    return path.stat().st_ino


class TestRecyclingStorage(StorageSuite):
    """Whatever a spare file held, nobody who writes into it or reads it can tell."""

    @pytest.fixture
    def storage(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Storage]:
        # Else only objects that are called as data files are.
        monkeypatch.setattr(spares, "_nearest_first", lambda names, _: names)
        put_spares(root, 40)
        with self.open(root) as storage:
            yield storage

    def second(self, storage: Storage) -> Storage:
        return self.open(Path(storage.location).parent)

    def open(self, root: Path) -> Storage:
        return LocalStorage(root / "ckpt", create=True, durable=False, recycled_from=root)


def test_a_spare_file_is_written_again_and_cut_to_its_new_size(root: Path) -> None:
    (spare,) = put_spares(root, 1)
    number = inode(spare)
    with LocalStorage(root / "c", create=True, recycled_from=root) as storage:
        write(storage, KEY, b"new")
        write(storage, OTHER, b"other")
        assert (read_all(storage, KEY), read_all(storage, OTHER)) == (b"new", b"other")
    assert inode(root / "c" / KEY) == number
    assert os.listdir(root / SPARES) == []


def test_what_is_not_written_reads_as_zeros_also_in_a_spare_file(root: Path) -> None:
    put_spares(root, 1, b"\xff" * 3_000_000)
    with LocalStorage(root / "c", create=True, recycled_from=root) as storage:
        with storage.create(KEY) as sink:
            sink.write(2_500_000, [b"end"])
            sink.write(100, [b"ab", b"cd"])
        found = read_all(storage, KEY)
    assert found == bytes(100) + b"abcd" + bytes(2_500_000 - 104) + b"end"


def test_a_rank_takes_what_it_wrote_itself_first(root: Path) -> None:
    made = {n: inode(path) for n, path in enumerate(put_spares(root, 4))}
    key = file_name(new_save_id(), 0, 2)
    with LocalStorage(root / "c", create=True, recycled_from=root) as storage:
        write(storage, key, b"new")
    assert inode(root / "c" / key) == made[2]


def test_what_is_no_data_file_takes_no_spare_one(root: Path) -> None:
    (spare,) = put_spares(root, 1)
    with LocalStorage(root / "c", create=True, recycled_from=root) as storage:
        write(storage, "report.json", b"{}")
    assert spare.exists()


def test_many_at_once_take_different_files(root: Path) -> None:
    numbers = {inode(path) for path in put_spares(root, 8)}
    with LocalStorage(root / "c", create=True, recycled_from=root) as storage:
        keys = [file_name(new_save_id(), rank, 0) for rank in range(12)]
        at_once(lambda n: write(storage, keys[n], keys[n].encode()), threads=len(keys))
        for key in keys:
            assert read_all(storage, key) == key.encode()
    found = {inode(path) for path in (root / "c").iterdir()}
    assert len(found) == 12
    # Two that look at the same file at once may both let it be: then fresh ones are made.
    assert found & numbers


def test_a_file_that_is_open_is_left_alone(root: Path) -> None:
    (spare,) = put_spares(root, 1)
    with spare.open("rb") as reader:
        with LocalStorage(root / "c", create=True, recycled_from=root) as storage:
            write(storage, KEY, b"new")
        assert reader.read() == OLD


def test_a_file_that_is_mapped_is_left_alone_though_it_is_open_no_more(root: Path) -> None:
    (spare,) = put_spares(root, 1)
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    fd = os.open(spare, os.O_RDONLY)
    address = libc.mmap(None, len(OLD), mmap.PROT_READ, mmap.MAP_SHARED, fd, ctypes.c_long(0))
    os.close(fd)
    with LocalStorage(root / "c", create=True, recycled_from=root) as storage:
        write(storage, KEY, b"new")
        assert read_all(storage, KEY) == b"new"
    assert ctypes.string_at(address, len(OLD)) == OLD
    libc.munmap(ctypes.c_void_p(address), len(OLD))


def test_a_file_of_another_process_is_left_alone(root: Path) -> None:
    (spare,) = put_spares(root, 1)
    reader = subprocess.Popen(
        [sys.executable, "-c", "import sys; f = open(sys.argv[1], 'rb'); print(1, flush=True); "
         "input(); sys.exit(f.read() != b'\\xff' * 5000)", str(spare)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert reader.stdout is not None
    reader.stdout.readline()
    with LocalStorage(root / "c", create=True, recycled_from=root) as storage:
        write(storage, KEY, b"new")
    reader.communicate(b"\n")
    assert reader.returncode == 0


def test_a_file_with_another_name_is_left_alone(root: Path) -> None:
    (spare,) = put_spares(root, 1)
    (root / "backup").hardlink_to(spare)
    with LocalStorage(root / "c", create=True, recycled_from=root) as storage:
        write(storage, KEY, b"new")
    assert (root / "backup").read_bytes() == OLD


def test_what_a_fresh_file_would_not_be_is_left_alone(root: Path) -> None:
    other_mode, link, folder = put_spares(root, 3)
    other_mode.chmod(0o600)
    link.unlink()
    (root / "secret").write_bytes(OLD)
    link.symlink_to(root / "secret")
    folder.unlink()
    folder.mkdir()
    with LocalStorage(root / "c", create=True, recycled_from=root) as storage:
        write(storage, KEY, b"new")
    assert (root / "c" / KEY).read_bytes() == b"new"
    assert (root / "secret").read_bytes() == OLD
    assert other_mode.read_bytes() == OLD


def test_a_key_that_is_taken_keeps_its_file_and_the_spare_one(root: Path) -> None:
    (spare,) = put_spares(root, 1)
    with LocalStorage(root / "c", create=True, recycled_from=root) as storage:
        (root / "c" / KEY).write_bytes(b"there")
        with pytest.raises(ConflictError, match="never overwritten"):
            storage.create(KEY)
    assert (root / "c" / KEY).read_bytes() == b"there"
    assert spare.exists()


@pytest.mark.parametrize("kind", ["listdir", "fstat", "is_mine_alone", "move"])
def test_a_failed_call_on_spare_files_costs_the_spare_file_only(root: Path, kind: str) -> None:
    put_spares(root, 1)
    calls = FaultyCalls()
    with LocalStorage(root / "c", create=True, recycled_from=root, calls=calls) as storage:
        calls.fail(kind, 5)
        write(storage, KEY, b"new")
        assert read_all(storage, KEY) == b"new"


def test_a_move_whose_reply_was_an_error_is_looked_into(root: Path) -> None:
    (spare,) = put_spares(root, 1)
    number = inode(spare)
    calls = FaultyCalls()
    with LocalStorage(root / "c", create=True, recycled_from=root, calls=calls) as storage:
        calls.fail("move", 5, done=True)
        write(storage, KEY, b"new")
        assert read_all(storage, KEY) == b"new"
    assert inode(root / "c" / KEY) == number


def test_a_save_that_fails_leaves_neither(root: Path) -> None:
    put_spares(root, 1)
    calls = FaultyCalls()
    with LocalStorage(root / "c", create=True, recycled_from=root, calls=calls) as storage:
        calls.fail("truncate", 5)
        with pytest.raises(OSError, match="cutting off what it held before"):
            write(storage, KEY, b"new")
        assert storage.list() == []


def test_nobody_dies_of_one_who_opens_a_spare_file_in_that_moment(root: Path) -> None:
    (spare,) = put_spares(root, 1)
    opener = os.fork()
    if opener == 0:
        while True:
            with suppress(OSError):
                os.close(os.open(spare, os.O_RDONLY))
    fd = os.open(spare, os.O_RDWR)
    try:
        answers = {FileCalls().is_mine_alone(fd) for _ in range(20_000)}
    finally:
        os.kill(opener, 9)
        os.waitpid(opener, 0)
        os.close(fd)
    assert True in answers


# What is kept


def make_checkpoint(root: Path, name: str, *numbers: int) -> list[int]:
    (root / name).mkdir()
    (root / name / "manifest.json").write_text("{}")
    made = [root / name / file_name(new_save_id(), 0, number) for number in numbers]
    for path in made:
        path.write_bytes(OLD)
    return [inode(path) for path in made]


def test_a_shelf_keeps_the_data_files_of_the_last_that_was_removed(root: Path) -> None:
    shelf = LocalShelf(root, recycle=True)
    make_checkpoint(root, "a", 0, 1, 2)
    later = make_checkpoint(root, "b", 0, 1)
    shelf.remove("a")
    assert shelf.spare_nbytes() == 3 * len(OLD)
    shelf.remove("b")
    assert sorted(map(inode, (root / SPARES).iterdir())) == sorted(later)
    shelf.sweep()
    assert shelf.spare_nbytes() == 2 * len(OLD)
    assert shelf.names() == ["try"]
    shelf.discard_spares()
    assert not (root / SPARES).exists()
    assert shelf.spare_nbytes() == 0
    shelf.discard_spares()


def test_a_shelf_that_keeps_none_sweeps_those_of_another(root: Path) -> None:
    put_spares(root, 2)
    LocalShelf(root).sweep()
    assert not (root / SPARES).exists()


def test_nothing_is_kept_where_others_may_have_files_open(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_checkpoint(root, "a", 0)
    monkeypatch.setattr(FileCalls, "file_system", lambda *_: 0x6969)  # NFS
    LocalShelf(root, recycle=True).remove("a")
    assert not (root / SPARES).exists() or not os.listdir(root / SPARES)
    put_spares(root, 1)
    with LocalStorage(root / "c", create=True, recycled_from=root) as storage:
        write(storage, KEY, b"new")
    assert len(os.listdir(root / SPARES)) == 1


@pytest.mark.parametrize("kind", ["mkdir", "move", "listdir"])
def test_what_cannot_be_kept_is_removed(
    root: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def refused(*arguments: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    make_checkpoint(root, "a", 0, 1)
    shelf = LocalShelf(root, recycle=True)
    monkeypatch.setattr(FileCalls, kind, refused)
    shelf.remove("a")
    assert shelf.names() == ["try"]
    assert not list(root.glob(".removed-*"))
    assert shelf.spare_nbytes() == 0

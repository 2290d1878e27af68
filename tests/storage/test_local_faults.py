"""Calls fail, stop short or lose their reply: nothing is lost, and the error says what to do."""

import errno
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from shardkeep.errors import NotFoundError, ShardkeepError, StorageError
from shardkeep.storage import LocalStorage, OutcomeUnknownError
from shardkeep.testing.storage_suite import distinct_bytes, read_all, write_object
from tests.storage.faulty_calls import KINDS, FaultyCalls

OLD, NEW, DATA = b"the old manifest", b"the new one, longer", distinct_bytes(5000)


def save(storage: LocalStorage, *, commit: str) -> None:
    """Every verb in the order of a save: data, names, check, commit, clean-up."""
    with storage.create("data") as sink:
        sink.write(1000, [DATA[1000:]])
        sink.write(0, [DATA[:500], DATA[500:1000]])
    storage.sync()
    assert {entry.key for entry in storage.list()} >= {"data"}
    assert storage.read("data", 0, 10) == DATA[:10]
    storage.read_into("data", 0, [bytearray(10)])
    if commit == "put":
        assert storage.put_if_absent("manifest.json", NEW)
    else:
        assert storage.replace("manifest.json", NEW, expected=OLD)


def started(folder: Path, calls: FaultyCalls, *, commit: str) -> LocalStorage:
    if commit == "replace":
        with LocalStorage(folder, create=True) as storage:
            storage.put_if_absent("manifest.json", OLD)
    return LocalStorage(folder, create=True, calls=calls)


def counts_of_a_save(folder: Path, *, commit: str) -> dict[str, int]:
    calls = FaultyCalls()
    with started(folder, calls, commit=commit) as storage:
        calls.counts.clear()
        save(storage, commit=commit)
        return dict(calls.counts)


@pytest.mark.parametrize("done", [False, True], ids=["refused", "reply lost"])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EROFS], ids=errno.errorcode.get)
@pytest.mark.parametrize("commit", ["put", "replace"])
def test_whichever_call_fails_the_outcome_is_old_or_new_and_told(
    tmp_path: Path, commit: str, number: int, done: bool, open_fds: Callable[[], int]
):
    before = {"put": None, "replace": OLD}[commit]
    fds = open_fds()
    counts = counts_of_a_save(tmp_path / "counted", commit=commit)
    assert counts.keys() >= {"open", "pwritev", "preadv", "pread", "fsync", "lstat", "unlink"}
    for kind in counts.keys() - {"close"}:
        for nth in range(1, counts[kind] + 1):
            folder, calls = tmp_path / f"{kind}-{nth}", FaultyCalls()
            with started(folder, calls, commit=commit) as storage:
                calls.fail(kind, number, nth=nth, done=done and kind != "open")
                error = error_of(storage, commit=commit)
            after = value_of(folder / "manifest.json")

            assert after in (before, NEW), (kind, nth)
            if error is None:
                assert after == NEW, (kind, nth)
            elif not isinstance(error, OutcomeUnknownError):
                assert after == before, (kind, nth, error)
            if error is not None:
                assert isinstance(error, StorageError), (kind, nth, error)
                assert error.errno == number, (kind, nth, error)
                assert str(error.filename).startswith(str(folder)), (kind, nth, error)
            if kind != "unlink":
                assert not list(folder.glob(".tmp-*")), (kind, nth)
    assert open_fds() == fds


def error_of(storage: LocalStorage, *, commit: str) -> ShardkeepError | None:
    try:
        save(storage, commit=commit)
    except ShardkeepError as error:
        return error
    return None


def value_of(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


@pytest.mark.parametrize("kind", ["link", "rename"])
def test_a_commit_whose_reply_was_lost_is_found_to_be_made(
    folder: Path, calls: FaultyCalls, kind: str
):
    commit = {"link": "put", "rename": "replace"}[kind]
    for number in (errno.EEXIST, errno.ENOENT, errno.EIO):
        with started(folder / str(number), calls, commit=commit) as storage:
            calls.fail(kind, number, done=True)
            save(storage, commit=commit)
            assert read_all(storage, "manifest.json") == NEW
            assert [entry.key for entry in storage.list()] == ["data", "manifest.json"]


@pytest.mark.parametrize("kind", ["link", "rename"])
def test_a_commit_that_cannot_be_looked_at_is_unknown(folder: Path, calls: FaultyCalls, kind: str):
    commit = {"link": "put", "rename": "replace"}[kind]
    with started(folder, calls, commit=commit) as storage:
        calls.before(kind, lambda *_: calls.always_fail("lstat", errno.EIO))
        calls.fail(kind, errno.ESTALE, done=True)

        with pytest.raises(OutcomeUnknownError, match=r"manifest\.json") as caught:
            save(storage, commit=commit)
    assert "is unknown (the file server forgot the file" in str(caught.value)
    assert caught.value.errno == errno.ESTALE


# Short and interrupted calls


@pytest.mark.parametrize("max_nbytes", [1, 7, 4096])
def test_short_reads_and_writes_are_continued(
    storage: LocalStorage, calls: FaultyCalls, max_nbytes: int
):
    calls.max_nbytes = max_nbytes
    pieces = [DATA[start : start + 333] for start in range(0, len(DATA), 333)]
    with storage.create("a") as sink:
        sink.write(11, [*pieces, b""])
    assert storage.put_if_absent("b", DATA)
    buffers = [bytearray(0), *(bytearray(len(piece)) for piece in reversed(pieces))]

    storage.read_into("a", 11, buffers)

    assert b"".join(buffers) == DATA
    assert storage.read("a", 0, 11 + len(DATA)) == bytes(11) + DATA
    assert read_all(storage, "b") == DATA
    assert calls.counts["pwritev"] >= 2 * len(DATA) // max_nbytes


def test_a_write_that_moves_nothing_is_an_error_not_a_loop(
    storage: LocalStorage, calls: FaultyCalls
):
    sink = storage.create("a")
    calls.max_nbytes = 0

    with pytest.raises(StorageError, match="writing 3 bytes at offset 0 stopped after 0"):
        sink.write(0, [b"abc"])


INTERRUPTED = """
from shardkeep.storage import LocalStorage
storage = LocalStorage({path!r}, create=True)
with storage.create("a") as sink:
    sink.write(0, [b"abc"])
buffer = bytearray(3)
storage.read_into("a", 0, [buffer])
assert storage.put_if_absent("m", b"old") and storage.replace("m", b"new", expected=b"old")
print(buffer, storage.get("m", max_nbytes=9))
"""


# Python makes the second form of a call where the system has it.
INTERRUPTIBLE = ("pwritev", "pwritev2", "preadv", "preadv2", "fsync", "flock")


def test_interrupted_calls_are_repeated(folder: Path):
    inject = ["-e", "trace=" + ",".join(INTERRUPTIBLE)]
    for call in INTERRUPTIBLE:
        inject += ["-e", f"inject={call}:error=EINTR:when=1+3"]
    try:
        done = subprocess.run(
            ["strace", "-f", *inject, sys.executable, "-c", INTERRUPTED.format(path=str(folder))],
            capture_output=True,
            text=True,
        )
    except FileNotFoundError:
        pytest.skip("strace, which interrupts the calls, is not installed")
    if "ptrace" in done.stderr and done.returncode:
        pytest.skip(f"strace may not trace here: {done.stderr.splitlines()[0]}")

    assert done.stdout == "bytearray(b'abc') b'new'\n", done.stderr
    interrupted = re.findall(r"(\w+?)2?\(.* = -1 EINTR .*\(INJECTED\)", done.stderr)
    assert set(interrupted) == {"pwritev", "preadv", "fsync", "flock"}


# A failed fsync


def test_a_failed_fsync_fails_the_sink_for_good(
    storage: LocalStorage, folder: Path, calls: FaultyCalls
):
    sink = storage.create("a")
    sink.write(0, [b"abc"])
    calls.fail("fsync", errno.EIO)
    with pytest.raises(StorageError, match=r"making it durable \(fsync\): an I/O error"):
        sink.finish()
    synced = calls.counts["fsync"]

    with pytest.raises(StorageError, match=r"failed before.*abort it"):
        sink.finish()
    with pytest.raises(StorageError, match=r"failed before.*abort it"):
        sink.write(0, [b"x"])
    assert calls.counts["fsync"] == synced
    sink.abort()
    assert list(folder.iterdir()) == []


def test_a_failed_write_fails_the_sink_for_good(storage: LocalStorage, calls: FaultyCalls):
    def write_and_go_on() -> None:
        with storage.create("a") as sink:
            calls.fail("pwritev", errno.EIO)
            with pytest.raises(StorageError, match="writing 3 bytes at offset 9 stopped after 0"):
                sink.write(9, [b"abc"])

    with pytest.raises(StorageError, match="failed before"):
        write_and_go_on()
    assert storage.list() == []


def test_a_late_failure_at_close_fails_the_sink(storage: LocalStorage, calls: FaultyCalls):
    calls.fail("close", errno.EDQUOT, done=True)

    with pytest.raises(StorageError, match=r"closing it: the quota is used up, \d+ bytes are free"):
        write_object(storage, "a", b"abc")
    assert storage.list() == []


@pytest.mark.parametrize("verb", ["put_if_absent", "replace"])
def test_nothing_is_committed_after_a_failed_fsync(
    storage: LocalStorage, calls: FaultyCalls, verb: str
):
    commit = {
        "put_if_absent": lambda: storage.put_if_absent("m", NEW),
        "replace": lambda: storage.replace("m", NEW, expected=OLD),
    }[verb]
    if verb == "replace":
        storage.put_if_absent("m", OLD)
    before = storage.list()
    calls.fail("fsync", errno.EIO)

    with pytest.raises(StorageError, match=r"making it durable \(fsync\).*/m'$") as caught:
        commit()
    assert not isinstance(caught.value, OutcomeUnknownError)
    assert storage.list() == before


def test_a_failed_fsync_of_the_folder_leaves_the_outcome_unknown(
    storage: LocalStorage, calls: FaultyCalls
):
    calls.fail("fsync", errno.EIO, nth=2)

    with pytest.raises(OutcomeUnknownError, match="read it before removing anything"):
        storage.put_if_absent("m", NEW)
    assert read_all(storage, "m") == NEW
    calls.fail("fsync", errno.EIO)
    with pytest.raises(StorageError, match=r"making the folder's names durable \(fsync\)"):
        storage.sync()


def test_a_file_system_that_cannot_sync_folders_is_no_failure(
    storage: LocalStorage, calls: FaultyCalls
):
    calls.fail("fsync", errno.EINVAL)
    storage.sync()

    assert calls.log == ["fsync"]


def test_nothing_is_synced_unless_durable(folder: Path, calls: FaultyCalls):
    with started(folder, calls, commit="put") as storage:
        save(storage, commit="put")
    assert calls.counts["fsync"] > 0
    calls.counts.clear()
    with LocalStorage(folder / "other", create=True, durable=False, calls=calls) as storage:
        save(storage, commit="put")
        storage.replace("manifest.json", OLD, expected=NEW)

    assert (calls.counts["fsync"], calls.counts["rename"]) == (0, 1)


# What the error says


def test_a_full_disk_is_told_with_bytes_path_and_free_space(
    storage: LocalStorage, folder: Path, calls: FaultyCalls
):
    calls.max_nbytes = 1000
    calls.fail("pwritev", errno.ENOSPC, nth=3)

    with pytest.raises(StorageError, match="writing 5000 bytes at offset 0") as caught:
        write_object(storage, "a", DATA)
    assert re.fullmatch(
        r"\[Errno 28\] writing 5000 bytes at offset 0 stopped after 2000: no space left, "
        rf"\d+ bytes are free; make room or choose another place: '{folder}/a'",
        str(caught.value),
    )
    assert storage.list() == []


def test_a_disk_that_is_really_full(small_disk: Callable[[str], Path]):
    disk = small_disk("size=64k")
    storage = LocalStorage(disk / "ckpt", create=True)
    assert storage.put_if_absent("manifest.json", OLD)

    with pytest.raises(StorageError, match=r"stopped after \d+: no space left, \d+ bytes are free"):
        write_object(storage, "a", bytes(80_000))
    with storage.create("filler") as sink:
        sink.write(0, [bytes(os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize)])
    with pytest.raises(StorageError, match="no space left, 0 bytes are free") as caught:
        storage.replace("manifest.json", NEW, expected=OLD)
    assert caught.value.errno == errno.ENOSPC
    assert [entry.key for entry in storage.list()] == ["filler", "manifest.json"]
    storage.delete("filler")
    assert storage.replace("manifest.json", NEW, expected=OLD)
    storage.close()


def test_a_disk_without_room_for_one_more_name(small_disk: Callable[[str], Path]):
    disk = small_disk("size=64k,nr_inodes=4")
    with LocalStorage(disk / "ckpt", create=True) as storage:
        assert storage.put_if_absent("manifest.json", OLD)
        write_object(storage, "a", b"")
        with pytest.raises(
            StorageError, match=r"creating it: no space left, \d+ bytes are free but no inode is"
        ):
            write_object(storage, "b", b"")


def test_a_disk_that_is_really_read_only(small_disk: Callable[[str], Path]):
    disk = small_disk("size=64k")
    with LocalStorage(disk / "ckpt", create=True) as storage:
        assert storage.put_if_absent("manifest.json", OLD)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)

    with LocalStorage(disk / "ckpt", create=True) as storage:
        assert read_all(storage, "manifest.json") == OLD
        for act in (
            lambda: storage.create("a"),
            lambda: storage.put_if_absent("m", NEW),
            lambda: storage.replace("manifest.json", NEW, expected=OLD),
            lambda: storage.delete("manifest.json"),
        ):
            with pytest.raises(StorageError, match="the file system is read-only; remount it"):
                act()
    with pytest.raises(StorageError, match="making the folder: the file system is read-only"):
        LocalStorage(disk / "other", create=True)


def test_a_folder_that_one_may_not_write_to(storage: LocalStorage, folder: Path):
    storage.put_if_absent("manifest.json", OLD)
    folder.chmod(0o555)
    as_root = os.geteuid() == 0
    if as_root:
        os.seteuid(65534)
    try:
        for act in (
            lambda: storage.create("a"),
            lambda: storage.put_if_absent("m", NEW),
            lambda: storage.delete("manifest.json"),
        ):
            with pytest.raises(StorageError, match="permission denied; check the owner and mode"):
                act()
        assert read_all(storage, "manifest.json") == OLD
    finally:
        if as_root:
            os.seteuid(0)
        folder.chmod(0o755)


def test_a_file_that_one_may_not_read(storage: LocalStorage, folder: Path):
    storage.put_if_absent("manifest.json", OLD)
    (folder / "manifest.json").chmod(0)
    if os.geteuid() != 0:
        with pytest.raises(StorageError, match="opening it: permission denied"):
            read_all(storage, "manifest.json")
        return
    os.seteuid(65534)
    try:
        with pytest.raises(StorageError, match="opening it: permission denied"):
            read_all(storage, "manifest.json")
    finally:
        os.seteuid(0)


def test_a_folder_that_was_removed_meanwhile(storage: LocalStorage, folder: Path):
    folder.rmdir()

    with pytest.raises(StorageError, match="creating it: it or its folder was removed meanwhile"):
        storage.create("a")
    with pytest.raises(StorageError, match="it or its folder was removed meanwhile"):
        storage.put_if_absent("a", b"1")
    with pytest.raises(NotFoundError, match=f"'a' is not in {folder}: the folder was removed"):
        storage.size("a")
    assert storage.list() == []


def test_a_failed_clean_up_does_not_hide_the_cause(storage: LocalStorage, calls: FaultyCalls):
    calls.fail("pwritev", errno.ENOSPC)
    calls.fail("unlink", errno.EIO)

    with pytest.raises(StorageError, match="no space left") as caught:
        write_object(storage, "a", DATA)
    assert "and then, cleaning up: [Errno 5] removing it" in caught.value.__notes__[0]


def test_every_kind_of_call_goes_through_the_seam():
    assert set(KINDS) == {
        *("open", "close", "pread", "preadv", "pwritev", "fsync", "link", "rename", "unlink"),
        *("mkdir", "lstat", "fstat", "flock", "listdir", "fstatvfs", "map"),
        *("move", "truncate", "is_mine_alone", "file_system"),
    }

"""Commits in a local folder: what is written in which order, locks, crashes, other processes."""

import errno
import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shardkeep.errors import DeadlineError, StorageError
from shardkeep.storage import LocalStorage
from shardkeep.testing.storage_suite import at_once, read_all
from tests.storage.faulty_calls import FaultyCalls


def changes(calls: FaultyCalls) -> list[str]:
    """The logged calls that change something, temporary names shortened."""
    kinds = ("pwritev", "fsync", "link", "rename", "unlink", "flock")
    lines = [line.split() for line in calls.log if line.split()[0] in kinds]
    return [" ".join("T" if word.startswith(".tmp-") else word for word in line) for line in lines]


def test_a_put_is_durable_before_its_name_and_the_name_before_the_return(
    storage: LocalStorage, calls: FaultyCalls
):
    storage.put_if_absent("m", b"1")

    assert changes(calls) == ["pwritev", "fsync", "link T m", "unlink T", "fsync"]


def test_a_replacement_is_durable_before_its_name_and_the_name_before_the_return(
    storage: LocalStorage, calls: FaultyCalls
):
    storage.put_if_absent("m", b"1")
    calls.log.clear()
    storage.replace("m", b"2", expected=b"1")

    assert changes(calls) == ["pwritev", "fsync", "flock", "rename T m", "unlink T", "fsync"]


def test_a_lost_commit_changes_nothing(storage: LocalStorage, calls: FaultyCalls):
    storage.put_if_absent("m", b"1")
    calls.log.clear()
    storage.replace("m", b"2", expected=b"0")
    storage.put_if_absent("m", b"2")

    assert changes(calls) == [
        *("pwritev", "fsync", "flock", "unlink T"),
        *("pwritev", "fsync", "link T m", "unlink T"),
    ]


def test_what_a_crash_leaves_is_listed_as_temporary_and_can_be_deleted(
    storage: LocalStorage, calls: FaultyCalls
):
    def crash(*_: object) -> None:
        raise KeyboardInterrupt("as if the process ended here")

    calls.before("unlink", crash)
    with pytest.raises(KeyboardInterrupt, match="ended here"):
        storage.put_if_absent("m", b"123")
    calls.before("unlink", lambda *_: None)

    (left,) = [entry for entry in storage.list() if entry.is_temporary]
    assert (left.nbytes, read_all(storage, "m")) == (3, b"123")
    storage.delete(left.key)
    assert storage.list() == [("m", 3)]


@pytest.mark.parametrize("verb", ["put_if_absent", "replace"])
def test_a_temporary_file_swept_away_fails_the_commit_only(
    storage: LocalStorage, folder: Path, calls: FaultyCalls, verb: str
):
    def sweep(name: str, *_: object) -> None:
        (folder / name).unlink()

    commit = {
        "put_if_absent": lambda: storage.put_if_absent("n", b"2"),
        "replace": lambda: storage.replace("m", b"2", expected=b"1"),
    }[verb]
    storage.put_if_absent("m", b"1")
    calls.before({"put_if_absent": "link", "replace": "rename"}[verb], sweep)

    with pytest.raises(StorageError, match=r"removed meanwhile; does a clean-up run here\?"):
        commit()
    assert storage.list() == [("m", 1)]
    assert read_all(storage, "m") == b"1"


def test_a_stopped_holder_of_the_lock_is_not_waited_for_for_ever(folder: Path):
    storage = LocalStorage(folder, create=True, lock_timeout=0.1)
    storage.put_if_absent("m", b"1")
    with open(folder / "m", "rb+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        start = time.monotonic()
        with pytest.raises(DeadlineError, match=f"held the lock of {folder}/m for 0.1 s"):
            storage.replace("m", b"2", expected=b"1")
        assert time.monotonic() - start < 5
    assert storage.list() == [("m", 1)]

    assert storage.replace("m", b"2", expected=b"1")


def test_a_file_system_without_locks_is_told_with_the_way_out(
    storage: LocalStorage, calls: FaultyCalls
):
    storage.put_if_absent("m", b"1")
    calls.always_fail("flock", errno.ENOLCK)

    with pytest.raises(StorageError, match=r"locking it \(flock\)") as caught:
        storage.replace("m", b"2", expected=b"1")
    assert "save to a fresh folder each time" in caught.value.__notes__[0]
    assert (read_all(storage, "m"), len(storage.list())) == (b"1", 1)


def test_another_users_file_can_be_replaced_in_a_shared_folder(folder: Path):
    if os.geteuid() != 0:
        pytest.skip("only root may become another user")
    storage = LocalStorage(folder, create=True)
    storage.put_if_absent("m", b"1")
    folder.chmod(0o777)
    (folder / "m").chmod(0o644)
    os.seteuid(65534)
    try:
        assert storage.replace("m", b"2", expected=b"1")
    finally:
        os.seteuid(0)
    assert read_all(storage, "m") == b"2"


def test_a_value_deleted_while_a_replace_waits_is_not_the_expected_one(
    storage: LocalStorage, folder: Path, calls: FaultyCalls
):
    storage.put_if_absent("m", b"1")
    calls.before("flock", lambda *_: (folder / "m").unlink(missing_ok=True))

    assert not storage.replace("m", b"2", expected=b"1")
    assert storage.list() == []


def test_without_links_and_locks_a_put_is_refused(storage: LocalStorage, calls: FaultyCalls):
    calls.always_fail("link", errno.EPERM)
    calls.always_fail("flock", errno.ENOSYS)

    with pytest.raises(StorageError, match=r"locking it \(flock\)"):
        storage.put_if_absent("m", b"1")
    assert storage.list() == []


def test_puts_and_replaces_keep_apart_without_links(folder: Path):
    calls = FaultyCalls()
    calls.always_fail("link", errno.EPERM)
    storage = LocalStorage(folder, create=True, durable=False, calls=calls)

    won = at_once(lambda i: storage.put_if_absent("m", b"%d" % i))

    assert sum(won) == 1
    assert read_all(storage, "m") == b"%d" % won.index(True)


COUNTING = """
import sys
from shardkeep.storage import LocalStorage
storage, done = LocalStorage(sys.argv[1]), 0
won = storage.put_if_absent("first", sys.argv[2].encode())
while done < 25:
    seen = storage.get("count", max_nbytes=100)
    done += storage.replace("count", b"%d" % (int(seen) + 1), expected=seen)
print(won)
"""


def test_processes_lose_no_replacement_and_one_wins_a_put(folder: Path):
    with LocalStorage(folder, create=True) as storage:
        storage.put_if_absent("count", b"0")
        workers = [
            subprocess.Popen(
                [sys.executable, "-c", COUNTING, str(folder), f"{index}"],
                stdout=subprocess.PIPE,
                text=True,
            )
            for index in range(4)
        ]
        won = [worker.communicate(timeout=60)[0].strip() for worker in workers]

        assert sorted(won) == ["False", "False", "False", "True"]
        assert read_all(storage, "first") == b"%d" % won.index("True")
        assert read_all(storage, "count") == b"100"
        assert [entry.key for entry in storage.list()] == ["count", "first"]

"""How does one process keep others from committing at the same moment?

By an exclusive `flock` on an open file: it ends with the process, whatever happens to it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress

from shardkeep.errors import DeadlineError, NotFoundError, StorageError
from shardkeep.storage.folder import READ_FLAGS, Folder

# An exclusive lock on a network file system needs a file that is open for writing.
_LOCK_FLAGS = (READ_FLAGS & ~os.O_ACCMODE) | os.O_RDWR


@contextmanager
def folder_locked(folder: Folder, *, timeout: float) -> Generator[None]:
    """Holds the folder against others who lock it: on this host, other threads included."""
    fd = folder.reopen()
    try:
        wait_for_lock(folder, fd, ".", time.monotonic() + timeout, timeout)
        yield
    finally:
        close_quietly(folder, fd)


@contextmanager
def object_locked(folder: Folder, key: str, *, timeout: float) -> Generator[tuple[int, int] | None]:
    """Holds the file that `key` names now: its descriptor and size; None if there is none.

    The file itself is locked, since network file systems keep other hosts from a file, but not
    from a folder.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            fd, found = open_for_locking(folder, key)
        except NotFoundError:
            yield None
            return
        try:
            wait_for_lock(folder, fd, key, deadline, timeout)
            if is_current(folder, key, (found.st_dev, found.st_ino)):
                yield fd, found.st_size
                return
        finally:
            close_quietly(folder, fd)


def open_for_locking(folder: Folder, key: str) -> tuple[int, os.stat_result]:
    """An open file that can be locked, the caller's to close, and its status."""
    try:
        return folder.open_regular(key, _LOCK_FLAGS)
    except StorageError as error:
        if error.errno not in (errno.EACCES, errno.EPERM):
            raise
    # Another user's file in a folder that we may write to.
    return folder.open_regular(key)


def wait_for_lock(folder: Folder, fd: int, key: str, deadline: float, timeout: float) -> None:
    """Lock an open file; DeadlineError if another has it until then."""
    pause = 0.0005
    while True:
        try:
            return folder.calls.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # Not a blocking flock: a stopped process would hold us for ever.
            if time.monotonic() > deadline:
                raise DeadlineError(_late(folder, key, timeout)) from None
        except OSError as error:
            raise _no_locks(folder, key, error) from error
        time.sleep(pause)
        pause = min(2 * pause, 0.05)


def is_current(folder: Folder, key: str, identity: tuple[int, int]) -> bool:
    """Whether `key` still names the file with this device and inode."""
    try:
        found = folder.status(key)
    except NotFoundError:
        return False
    return identity == (found.st_dev, found.st_ino)


def close_quietly(folder: Folder, fd: int) -> None:
    """Let go of a file and its lock."""
    with suppress(OSError):
        folder.calls.close(fd)


def _late(folder: Folder, key: str, timeout: float) -> str:
    return (
        f"another process has held the lock of {folder.path_of(key)} for {timeout:g} s; "
        "is it stopped in the middle of a commit?"
    )


def _no_locks(folder: Folder, key: str, error: OSError) -> StorageError:
    act = "locking it (flock), which keeps two savers apart"
    failure = folder.failure(error, act, key)
    failure.add_note("If this file system has no locks, save to a fresh folder each time.")
    return failure

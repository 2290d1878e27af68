"""How does a process show that it is at work on a folder, so that a clean-up leaves it alone?

By a file of its own that it keeps locked. The lock ends with the process, however that ends, so
that what it was at work on can be told from what was left behind. Nothing here is synced: whoever
held a file before a loss of power is gone, too.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress

from shardkeep.errors import ConflictError, CorruptError, NotFoundError, StorageError
from shardkeep.storage.folder import Folder
from shardkeep.storage.locks import close_quietly, is_current, open_for_locking, wait_for_lock

# What file systems without locks answer.
_NO_LOCKS = frozenset({errno.ENOTSUP, errno.ENOSYS, errno.ENOLCK, errno.EINVAL, errno.EBADF})


@contextmanager
def held(folder: Folder, key: str, *, lock_timeout: float) -> Generator[None]:
    """A fresh file that stays locked until the end; on a file system without locks, none."""
    fd = _held_file(folder, key, lock_timeout)
    try:
        yield
    finally:
        if fd is not None:
            # Before the lock ends: else it would look like one that was left behind.
            with suppress(StorageError):
                folder.remove(key)
            # A process that was forked meanwhile has the file open as well, and the lock with it.
            with suppress(OSError):
                folder.calls.flock(fd, fcntl.LOCK_UN)
            close_quietly(folder, fd)


def _held_file(folder: Folder, key: str, lock_timeout: float) -> int | None:
    while True:
        fd = _create(folder, key)
        try:
            found = _status(folder, fd, key)
            wait_for_lock(folder, fd, key, time.monotonic() + lock_timeout, lock_timeout)
            if is_current(folder, key, (found.st_dev, found.st_ino)):
                return fd
        except BaseException as error:
            close_quietly(folder, fd)
            with suppress(StorageError):
                folder.remove(key)
            if isinstance(error, OSError) and error.errno in _NO_LOCKS:
                return None
            raise
        # A clean-up came between its making and its lock, and took it for one left behind.
        close_quietly(folder, fd)


def _create(folder: Folder, key: str) -> int:
    try:
        return folder.create(key)
    except FileExistsError as error:
        raise ConflictError(
            f"{folder.path_of(key)} is there already; if nobody is at work here, prune removes it"
        ) from error


def _status(folder: Folder, fd: int, key: str) -> os.stat_result:
    try:
        return folder.calls.fstat(fd)
    except OSError as error:
        raise folder.failure(error, "reading its status", key) from error


def is_held(folder: Folder, key: str) -> bool:
    """Whether somebody has locked the file; also if that cannot be found out."""
    try:
        fd, _ = open_for_locking(folder, key)
    except (NotFoundError, CorruptError):
        return False
    try:
        return not _lock_at_once(folder, fd)
    finally:
        close_quietly(folder, fd)


def delete_unless_held(folder: Folder, key: str) -> bool:
    """Remove the file while its lock is ours, so that nobody can come to hold it meanwhile."""
    try:
        fd, found = open_for_locking(folder, key)
    except NotFoundError:
        return True
    try:
        if not _lock_at_once(folder, fd):
            return False
        if is_current(folder, key, (found.st_dev, found.st_ino)):
            folder.remove(key)
        return True
    finally:
        close_quietly(folder, fd)


def _lock_at_once(folder: Folder, fd: int) -> bool:
    try:
        folder.calls.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        # Held by another; or, without locks, nobody can tell.
        return False
    return True

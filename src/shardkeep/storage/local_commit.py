"""How does a small value appear under its key, all at once, in a local folder?

It is written under a temporary name and made durable; then the name appears by `link`, which
fails if it is taken, or changes by `rename` while the old file is locked and still has the
expected content. At last the folder is synced.

A network file system can make a link or a rename and lose the reply. So after an error we look
whether it happened, and only if that cannot be found out the outcome is unknown.
"""

from __future__ import annotations

import errno
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from shardkeep.errors import StorageError
from shardkeep.storage.failures import OutcomeUnknownError
from shardkeep.storage.folder import Folder
from shardkeep.storage.keys import new_temporary_key
from shardkeep.storage.local_read import read_bytes
from shardkeep.storage.local_sink import LocalSink
from shardkeep.storage.locks import folder_locked, object_locked

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

# What file systems without hard links answer.
_CANNOT_LINK = frozenset({errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK})


def put_if_absent(folder: Folder, key: str, data: ReadableBuffer, *, lock_timeout: float) -> bool:
    """True if `data` is now the value of `key`, durably; False if it had one."""
    with _staged(folder, key, data) as temporary:
        is_put = _link(folder, temporary, key, lock_timeout)
    if is_put:
        _sync_after(folder, key)
    return is_put


def replace(
    folder: Folder, key: str, data: ReadableBuffer, expected: bytes, *, lock_timeout: float
) -> bool:
    """True if the value of `key` was `expected` and is now `data`, durably."""
    with _staged(folder, key, data) as temporary:
        is_put = _rename_if_expected(folder, temporary, key, expected, lock_timeout)
    if is_put:
        _sync_after(folder, key)
    return is_put


@contextmanager
def _staged(folder: Folder, key: str, data: ReadableBuffer) -> Generator[str]:
    temporary = new_temporary_key()
    with LocalSink(folder, temporary, named=key) as sink:
        sink.write(0, [data])
    try:
        yield temporary
    finally:
        # What stays is harmless: `list` names it.
        with suppress(StorageError):
            folder.remove(temporary)


def _link(folder: Folder, temporary: str, key: str, lock_timeout: float) -> bool:
    try:
        folder.calls.link(temporary, key, dir_fd=folder.fd)
    except OSError as error:
        if _was_linked(folder, temporary, key, error):
            return True
        if isinstance(error, FileExistsError):
            return False
        if error.errno in _CANNOT_LINK:
            return _rename_if_absent(folder, temporary, key, lock_timeout)
        raise folder.failure(error, "putting it under its name (link)", key) from error
    return True


def _rename_if_absent(folder: Folder, temporary: str, key: str, lock_timeout: float) -> bool:
    with folder_locked(folder, timeout=lock_timeout):
        if _identity(folder, key) is not None:
            return False
        _rename(folder, temporary, key)
        return True


def _rename_if_expected(
    folder: Folder, temporary: str, key: str, expected: bytes, lock_timeout: float
) -> bool:
    with object_locked(folder, key, timeout=lock_timeout) as held:
        if held is None or held[1] != len(expected):
            return False
        if read_bytes(folder, held[0], key, 0, len(expected)) != expected:
            return False
        _rename(folder, temporary, key)
        return True


def _rename(folder: Folder, temporary: str, key: str) -> None:
    identity = _identity(folder, temporary)
    try:
        folder.calls.rename(temporary, key, dir_fd=folder.fd)
    except OSError as error:
        if _is_there(folder, key, identity, error):
            return
        raise folder.failure(error, "putting it under its name (rename)", key) from error


def _was_linked(folder: Folder, temporary: str, key: str, error: OSError) -> bool:
    try:
        return folder.calls.lstat(temporary, dir_fd=folder.fd).st_nlink > 1
    except FileNotFoundError:
        return False
    except OSError:
        raise _unknown(folder, key, error) from error


def _is_there(folder: Folder, key: str, identity: tuple[int, int] | None, error: OSError) -> bool:
    try:
        return identity is not None and _identity(folder, key) == identity
    except StorageError:
        raise _unknown(folder, key, error) from error


def _identity(folder: Folder, key: str) -> tuple[int, int] | None:
    try:
        found = folder.calls.lstat(key, dir_fd=folder.fd)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise folder.failure(error, "looking at it", key) from error
    return found.st_dev, found.st_ino


def _sync_after(folder: Folder, key: str) -> None:
    try:
        folder.sync()
    except StorageError as error:
        raise _unknown(folder, key, error) from error


def _unknown(folder: Folder, key: str, error: OSError) -> OutcomeUnknownError:
    message = (
        f"whether it holds the new value, and durably, is unknown ({folder.explain(error)}); "
        "read it before removing anything that the new value refers to"
    )
    return OutcomeUnknownError(error.errno or errno.EIO, message, folder.path_of(key))

"""How is a file in the checkpoint's folder reached, and nothing else?

Every name is looked up relative to the open folder, so that the folder cannot be exchanged
meanwhile, and links are not followed. A pipe or device is not even opened: to open one can wait
for ever, or do something.
"""

from __future__ import annotations

import errno
import os
import stat
import weakref
from contextlib import suppress

from shardkeep.errors import CorruptError, InvalidError, NotFoundError, StorageError
from shardkeep.storage.failures import NO_SPACE, describe_free_space, explain, storage_error
from shardkeep.storage.file_calls import FileCalls

# O_NONBLOCK: if a pipe takes the file's place between the look and the open, do not wait for it.
READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY

# A file system that cannot sync a folder says so; those that can must succeed.
_CANNOT_SYNC_FOLDERS = frozenset({errno.EINVAL, errno.ENOTSUP, errno.ENOSYS})


class Folder:
    """An open folder. `path` is for messages only."""

    def __init__(self, path: str, fd: int, *, durable: bool, calls: FileCalls) -> None:
        self.path = path
        self.durable = durable
        self.calls = calls
        self._fd: int | None = fd
        # Also for those who forget to close.
        self._closing = weakref.finalize(self, calls.close, fd)
        self._closing.atexit = False

    @property
    def fd(self) -> int:
        if self._fd is None:
            raise InvalidError(f"the storage of {self.path} is closed: open it again")
        return self._fd

    def close(self) -> None:
        """Close the folder; without effect the second time."""
        self._fd = None
        self._closing()

    def path_of(self, key: str) -> str:
        """The path of an object, for messages."""
        return os.path.join(self.path, key)

    def status(self, key: str) -> os.stat_result:
        """The status of a regular file."""
        try:
            found = self.calls.lstat(key, dir_fd=self.fd)
        except OSError as error:
            raise self._cannot_open(error, key) from error
        self._require_regular(found, key)
        return found

    def open_regular(self, key: str, flags: int = READ_FLAGS) -> tuple[int, os.stat_result]:
        """An open regular file, the caller's to close, and its status."""
        self.status(key)
        try:
            fd = self.calls.open(key, flags, dir_fd=self.fd)
        except OSError as error:
            raise self._cannot_open(error, key) from error
        try:
            found = self.calls.fstat(fd)
            self._require_regular(found, key)
        except BaseException as error:
            self.calls.close(fd)
            if isinstance(error, OSError):
                raise self.failure(error, "reading its status", key) from error
            raise
        return fd, found

    def create(self, key: str) -> int:
        """A fresh file, open for writing, the caller's to close; FileExistsError if it is there."""
        try:
            return self.calls.open(key, CREATE_FLAGS, dir_fd=self.fd)
        except FileExistsError:
            raise
        except OSError as error:
            raise self.failure(error, "creating it", key) from error

    def reopen(self) -> int:
        """The folder opened once more, with a position and locks of its own."""
        try:
            return self.calls.open(".", FOLDER_FLAGS, dir_fd=self.fd)
        except OSError as error:
            raise self.failure(error, "opening the folder") from error

    def remove(self, key: str) -> bool:
        """True if the name was removed, False if it was not there. A link is removed itself."""
        try:
            self.calls.unlink(key, dir_fd=self.fd)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise self.failure(error, "removing it", key) from error
        return True

    def sync(self) -> None:
        """Make the names in the folder durable, if the storage is."""
        if not self.durable:
            return
        try:
            self.calls.fsync(self.fd)
        except OSError as error:
            if error.errno not in _CANNOT_SYNC_FOLDERS:
                raise self.failure(error, "making the folder's names durable (fsync)") from error

    def failure(self, error: OSError, act: str, key: str | None = None) -> StorageError:
        """`error` as a StorageError that names the path and, for a full disk, the free space."""
        path = self.path if key is None else self.path_of(key)
        return storage_error(error, act, path, free=self._free_space(error))

    def explain(self, error: OSError) -> str:
        """What `error` means and the way out."""
        return explain(error, self._free_space(error))

    def not_found(self, key: str) -> NotFoundError:
        """The error for a key that is not there; it says so if the whole folder is gone."""
        removed = ""
        with suppress(OSError):
            if self.calls.fstat(self.fd).st_nlink == 0:
                removed = ": the folder was removed meanwhile"
        return NotFoundError(f"{key!r} is not in {self.path}{removed}")

    def _free_space(self, error: OSError) -> str:
        if error.errno in NO_SPACE:
            with suppress(OSError):
                return describe_free_space(self.calls.fstatvfs(self.fd))
        return ""

    def _cannot_open(self, error: OSError, key: str) -> Exception:
        if error.errno == errno.ENOENT:
            return self.not_found(key)
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.ENODEV):
            # A link, pipe, socket or device that came after the look at its status.
            return self._not_regular("not a regular file", key)
        return self.failure(error, "opening it", key)

    def _require_regular(self, found: os.stat_result, key: str) -> None:
        if not stat.S_ISREG(found.st_mode):
            raise self._not_regular(_describe(found.st_mode), key)

    def _not_regular(self, what: str, key: str) -> CorruptError:
        return CorruptError(
            f"{self.path_of(key)} is {what}: a checkpoint has regular files only, "
            "nothing else is followed or read"
        )


def _describe(mode: int) -> str:
    kinds = {
        stat.S_IFLNK: "a symbolic link",
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    return kinds.get(stat.S_IFMT(mode), "not a regular file")

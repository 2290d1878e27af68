"""How does one local file get written, to the last byte or not at all?"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from shardkeep.errors import InvalidError, StorageError
from shardkeep.storage.buffers import check_range, readable_views, total_nbytes, transfer
from shardkeep.storage.folder import Folder
from shardkeep.storage.sinks import FinishOrAbort

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class LocalSink(FinishOrAbort):
    """A fresh file being written under `key`; FileExistsError if that is taken.

    `named` is the key that messages name, where the file's own is temporary. `fd` is the file
    itself, if it is open already.
    """

    def __init__(
        self, folder: Folder, key: str, *, named: str | None = None, fd: int | None = None
    ) -> None:
        self._folder = folder
        self._key = key
        self._named = named or key
        self._failure: StorageError | None = None
        self._is_finished = False
        self._is_aborted = False
        self._written: list[tuple[int, int]] = []
        self._fd: int | None = folder.create(key) if fd is None else fd

    def write(self, offset: int, buffers: Sequence[ReadableBuffer]) -> None:
        """Write all bytes of `buffers` from `offset` on."""
        fd = self._open_fd()
        views = readable_views(buffers)
        wanted, moved = total_nbytes(views), 0
        check_range(offset, wanted)
        try:
            for step in transfer(partial(self._folder.calls.pwritev, fd), views, offset):
                moved += step
            if moved < wanted:
                raise OSError(errno.EIO, "a write moved no bytes")
        except OSError as error:
            act = f"writing {wanted} bytes at offset {offset} stopped after {moved}"
            raise self._fail(error, act) from error

    def finish(self) -> None:
        """Make the content durable, if the storage is, and close the file. A failure is final."""
        if self._is_finished:
            return
        fd = self._open_fd()
        try:
            if self._folder.durable:
                self._folder.calls.fsync(fd)
        except OSError as error:
            # Never again: a second fsync may succeed although the pages were dropped.
            raise self._fail(error, "making it durable (fsync)") from error
        self._fd = None
        try:
            # Network file systems report a late failure of a write here.
            self._folder.calls.close(fd)
        except OSError as error:
            raise self._fail(error, "closing it") from error
        self._is_finished = True

    def abort(self) -> None:
        """Close and remove the file; without effect once the sink is finished."""
        if self._is_finished or self._is_aborted:
            return
        fd, self._fd = self._fd, None
        if fd is not None:
            with suppress(OSError):
                self._folder.calls.close(fd)
        self._folder.remove(self._key)
        self._is_aborted = True

    def _open_fd(self) -> int:
        if self._failure is not None:
            number = self._failure.errno or errno.EIO
            message = f"this sink failed before ({self._failure.strerror}); abort it"
            raise StorageError(number, message, self._folder.path_of(self._named))
        if self._fd is None:
            raise InvalidError(f"the sink of {self._named!r} is closed: create another object")
        return self._fd

    def _fail(self, error: OSError, act: str) -> StorageError:
        self._failure = self._folder.failure(error, act, self._named)
        return self._failure

"""Objects as files of a local folder, or of one that is mounted here."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from shardkeep.errors import ConflictError, CorruptError, NotFoundError
from shardkeep.storage import local_commit
from shardkeep.storage.buffers import check_range, total_nbytes, writable_views
from shardkeep.storage.closing import ClosedAtEnd
from shardkeep.storage.failures import too_large
from shardkeep.storage.file_calls import FileCalls
from shardkeep.storage.holding import delete_unless_held, held, is_held
from shardkeep.storage.keys import check_key, check_new_key, is_key
from shardkeep.storage.local_read import read_bytes, read_into, read_range
from shardkeep.storage.local_sink import LocalSink
from shardkeep.storage.open_files import OpenFiles
from shardkeep.storage.opening_folders import open_folder
from shardkeep.storage.protocols import Entries, Entry, ReadAt
from shardkeep.storage.recycled_sink import RecycledSink
from shardkeep.storage.spares import Spares

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer


class LocalStorage(ClosedAtEnd):
    """The folder at `path`, made with its parents if `create`; NotFoundError if it is not there.

    `durable=False` leaves out every fsync. A `replace` waits at most `lock_timeout` seconds for
    another one. At most `max_open_files` files stay open between reads. Objects are written into
    spare files of the run at `recycled_from`, where it has some. `calls` is for tests.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        create: bool = False,
        durable: bool = True,
        lock_timeout: float = 30.0,
        max_open_files: int = 64,
        recycled_from: str | os.PathLike[str] | None = None,
        calls: FileCalls | None = None,
    ) -> None:
        self._folder = open_folder(
            os.fspath(path), create=create, durable=durable, calls=calls or FileCalls()
        )
        self._files = OpenFiles(self._folder, limit=max_open_files)
        self._lock_timeout = lock_timeout
        self._spares = Spares(recycled_from, self._folder.calls) if recycled_from else None

    @property
    def location(self) -> str:
        return self._folder.path

    @property
    def durable(self) -> bool:
        return self._folder.durable

    def read_into(self, key: str, offset: int, buffers: Sequence[WriteableBuffer]) -> None:
        check_key(key)
        views = writable_views(buffers)
        check_range(offset, total_nbytes(views))
        with self._files.borrow(key) as fd:
            read_into(self._folder, fd, key, offset, views)

    @contextmanager
    def reading(self, key: str) -> Generator[ReadAt]:
        check_key(key)
        with self._files.borrow(key) as fd:
            yield partial(read_into, self._folder, fd, key)

    def read(self, key: str, offset: int, nbytes: int) -> bytes:
        check_key(key)
        check_range(offset, nbytes)
        with self._files.borrow(key) as fd:
            return read_range(self._folder, fd, key, offset, nbytes)

    def get(self, key: str, *, max_nbytes: int) -> bytes:
        check_key(key)
        # Opened anew: only then a network file system asks its server for the present value.
        fd, found = self._folder.open_regular(key)
        try:
            if found.st_size > max_nbytes:
                raise too_large(self._folder.path_of(key), found.st_size, max_nbytes)
            return read_bytes(self._folder, fd, key, 0, found.st_size)
        finally:
            self._folder.calls.close(fd)

    def size(self, key: str) -> int:
        check_key(key)
        return self._folder.status(key).st_size

    def map(self, key: str) -> memoryview:
        """The file's pages, read-only; if another process cuts the file off, use of it crashes."""
        check_key(key)
        with self._files.borrow(key) as fd:
            try:
                nbytes = self._folder.calls.fstat(fd).st_size
                # An empty file cannot be mapped.
                return memoryview(self._folder.calls.map(fd, nbytes) if nbytes else b"")
            except OSError as error:
                raise self._folder.failure(error, "mapping it into memory", key) from error

    def create(self, key: str) -> LocalSink:
        check_new_key(key)
        try:
            fd = self._folder.create(key)
        except FileExistsError as error:
            raise ConflictError(
                f"{self._folder.path_of(key)} is already there; objects are never overwritten"
            ) from error
        spare = self._spares.take(self._folder, key, fd) if self._spares is not None else None
        if spare is not None:
            return RecycledSink(self._folder, key, fd=spare)
        return LocalSink(self._folder, key, fd=fd)

    def put_if_absent(self, key: str, data: ReadableBuffer) -> bool:
        check_new_key(key)
        return local_commit.put_if_absent(self._folder, key, data, lock_timeout=self._lock_timeout)

    def replace(self, key: str, data: ReadableBuffer, *, expected: bytes) -> bool:
        check_new_key(key)
        return local_commit.replace(
            self._folder, key, data, expected, lock_timeout=self._lock_timeout
        )

    def sync(self) -> None:
        if self._spares is not None and self.durable:
            self._spares.sync()
        self._folder.sync()

    def list(self) -> Entries:
        fd = self._folder.reopen()
        try:
            names = self._folder.calls.listdir(fd)
        except OSError as error:
            raise self._folder.failure(error, "listing the folder") from error
        finally:
            self._folder.calls.close(fd)
        entries: Entries = []
        for name in sorted(filter(is_key, names)):
            # Removed meanwhile, or a link, folder, pipe, device: not an object.
            with suppress(NotFoundError, CorruptError):
                entries.append(Entry(name, self._folder.status(name).st_size))
        return entries

    def delete(self, key: str, *, missing_ok: bool = False) -> None:
        check_key(key)
        self._files.forget(key)
        if not self._folder.remove(key) and not missing_ok:
            raise self._folder.not_found(key)

    def hold(self, key: str) -> AbstractContextManager[None]:
        check_new_key(key)
        return held(self._folder, key, lock_timeout=self._lock_timeout)

    def is_held(self, key: str) -> bool:
        check_key(key)
        return is_held(self._folder, key)

    def delete_unless_held(self, key: str) -> bool:
        check_key(key)
        return delete_unless_held(self._folder, key)

    def close(self) -> None:
        self._files.close()
        if self._spares is not None:
            self._spares.close()
        self._folder.close()

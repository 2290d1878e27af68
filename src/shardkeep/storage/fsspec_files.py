"""Objects wherever fsspec reaches: to be read.

fsspec has one word for an exclusive create, but most of its file systems look first and write then,
so that two savers can both win; which of them do not, cannot be told. So nothing is written by it.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from shardkeep.errors import NotFoundError, ShardkeepError, StorageError, UnsupportedError
from shardkeep.storage.buffers import check_range, total_nbytes, writable_views
from shardkeep.storage.closing import ClosedAtEnd
from shardkeep.storage.failures import too_large, too_short
from shardkeep.storage.keys import check_key, is_key
from shardkeep.storage.object_costs import IN_FLIGHT, MeasuredCosts
from shardkeep.storage.protocols import Entries, Entry, ReadCosts, Sink

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

_T = TypeVar("_T")


class FsspecStorage(ClosedAtEnd):
    """The files in a folder of any fsspec file system, by its URL; they are only read."""

    def __init__(self, url: str, **options: Any) -> None:
        try:
            core: Any = import_module("fsspec.core")
        except ImportError as error:
            raise UnsupportedError(
                f"{url}: there is no storage for it here but fsspec: pip install fsspec"
            ) from error
        self._url = url.rstrip("/")
        try:
            self._files, self._root = core.url_to_fs(url, **options)
        except (ImportError, ValueError) as error:
            raise UnsupportedError(f"{url} cannot be opened by fsspec: {error}") from error
        # Others, such as FTP, have one connection, which threads must not share.
        self._costs = MeasuredCosts(in_flight=IN_FLIGHT if self._files.async_impl else 1)

    @property
    def location(self) -> str:
        return self._url

    def costs(self) -> ReadCosts:
        """What a read costs, as far as it was measured."""
        return self._costs.now()

    def read_into(self, key: str, offset: int, buffers: Sequence[WriteableBuffer]) -> None:
        check_key(key)
        views = writable_views(buffers)
        data, at = self.fetch(key, offset, total_nbytes(views)), 0
        for view in views:
            view[:] = data[at : at + len(view)]
            at += len(view)

    def read(self, key: str, offset: int, nbytes: int) -> bytes:
        return bytes(self.fetch(key, offset, nbytes))

    def fetch(self, key: str, offset: int, nbytes: int) -> memoryview:
        """The same bytes in memory that they came in, without a copy."""
        check_key(key)
        check_range(offset, nbytes)
        found = self._size_or_less(key, offset, nbytes) if nbytes else b""
        return memoryview(found)

    def _size_or_less(self, key: str, offset: int, nbytes: int) -> bytes:
        size = self.size(key)
        if offset + nbytes > size:
            raise too_short(f"{self._url}/{key}", offset, nbytes, max(0, size - offset))
        return self._bytes(key, offset, offset + nbytes)

    def _bytes(self, key: str, start: int, stop: int) -> bytes:
        began = time.perf_counter()
        found = self._ask(key, lambda path: self._files.cat_file(path, start=start, end=stop))
        self._costs.saw(len(found), time.perf_counter() - began)
        return found

    def read_start(self, key: str, nbytes: int) -> tuple[bytes, int]:
        """The first bytes, at most `nbytes`, and the object's size."""
        size = self.size(key)
        return self.read(key, 0, min(nbytes, size)), size

    def get(self, key: str, *, max_nbytes: int) -> bytes:
        size = self.size(key)
        if size > max_nbytes:
            raise too_large(f"{self._url}/{key}", size, max_nbytes)
        return self._ask(key, lambda path: self._files.cat_file(path))

    def size(self, key: str) -> int:
        check_key(key)
        return int(self._ask(key, lambda path: self._files.size(path)) or 0)

    def list(self) -> Entries:
        found: Any = self._ask("", lambda _: self._files.ls(self._root, detail=True))
        files = [(one["name"].rpartition("/")[2], one) for one in found if one["type"] == "file"]
        return sorted(Entry(name, int(one["size"] or 0)) for name, one in files if is_key(name))

    def _ask(self, key: str, call: Callable[[str], _T]) -> _T:
        try:
            return call(f"{self._root.rstrip('/')}/{key}")
        except FileNotFoundError as error:
            raise NotFoundError(f"{key!r} is not in {self._url}") from error
        except ShardkeepError:
            raise
        except Exception as error:
            # fsspec lets through whatever the library below it raises.
            said = str(error) or type(error).__name__
            raise StorageError(errno.EIO, f"reading it: {said}", f"{self._url}/{key}") from error

    # What it does not do

    def create(self, key: str) -> Sink:
        self._refuse()

    def put_if_absent(self, key: str, data: ReadableBuffer) -> bool:
        self._refuse()

    def replace(self, key: str, data: ReadableBuffer, *, expected: bytes) -> bool:
        self._refuse()

    def delete(self, key: str, *, missing_ok: bool = False) -> None:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise UnsupportedError(
            f"{self._url} can only be read: fsspec cannot promise that of two saves one wins. "
            "Save to a folder or to s3://, gs:// or az://, and copy it there"
        )

    def sync(self) -> None:
        """Nothing to do: nothing is written."""

    def close(self) -> None:
        """Nothing to do: fsspec keeps its connections itself."""

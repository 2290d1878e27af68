"""Objects in this process's memory, under `memory://name`: for tests, and for what may be lost."""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardkeep.errors import ConflictError, InvalidError, NotFoundError
from shardkeep.storage.buffers import check_range, readable_views, total_nbytes, writable_views
from shardkeep.storage.closing import ClosedAtEnd
from shardkeep.storage.failures import too_large, too_short
from shardkeep.storage.keys import check_key, check_new_key
from shardkeep.storage.protocols import Entries, Entry
from shardkeep.storage.sinks import FinishOrAbort

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer


@dataclass(slots=True)
class _Objects:
    values: dict[str, memoryview] = field(default_factory=dict[str, memoryview])
    # Keys of sinks that are not finished: taken, yet not visible.
    reserved: set[str] = field(default_factory=set[str])
    held: set[str] = field(default_factory=set[str])
    lock: threading.Lock = field(default_factory=threading.Lock)


_objects_by_name: dict[str, _Objects] = {}
_registry_lock = threading.Lock()


def forget_memory(name: str) -> None:
    """Let go of all objects under `name`, for whoever opens it from now on."""
    with _registry_lock:
        _objects_by_name.pop(name, None)


class MemoryStorage(ClosedAtEnd):
    """The objects under `name`: the same ones for all who open it; NotFoundError if there are none.

    `create` makes an empty one if there is none.
    """

    def __init__(self, name: str, *, create: bool = True) -> None:
        if not name:
            raise InvalidError("a memory storage needs a name, as in memory://name")
        self._name = name
        with _registry_lock:
            if name not in _objects_by_name and not create:
                raise NotFoundError(f"there is no {self.location} in this process")
            self._objects = _objects_by_name.setdefault(name, _Objects())

    @property
    def location(self) -> str:
        return f"memory://{self._name}"

    def read_into(self, key: str, offset: int, buffers: Sequence[WriteableBuffer]) -> None:
        value, views = self.map(key), writable_views(buffers)
        check_range(offset, total_nbytes(views))
        self._require(key, value, offset, total_nbytes(views))
        for view in views:
            view[:] = value[offset : offset + view.nbytes]
            offset += view.nbytes

    def read(self, key: str, offset: int, nbytes: int) -> bytes:
        value = self.map(key)
        check_range(offset, nbytes)
        self._require(key, value, offset, nbytes)
        return bytes(value[offset : offset + nbytes])

    def get(self, key: str, *, max_nbytes: int) -> bytes:
        value = self.map(key)
        if value.nbytes > max_nbytes:
            raise too_large(f"{self.location}/{key}", value.nbytes, max_nbytes)
        return bytes(value)

    def size(self, key: str) -> int:
        return self.map(key).nbytes

    def map(self, key: str) -> memoryview:
        check_key(key)
        with self._objects.lock:
            value = self._objects.values.get(key)
        if value is None:
            raise self._not_found(key)
        return value

    def create(self, key: str) -> MemorySink:
        check_new_key(key)
        with self._objects.lock:
            if key in self._objects.values or key in self._objects.reserved:
                raise ConflictError(
                    f"{self.location}/{key} is already there; objects are never overwritten"
                )
            self._objects.reserved.add(key)
        return MemorySink(self._objects, key)

    def put_if_absent(self, key: str, data: ReadableBuffer) -> bool:
        check_new_key(key)
        value = memoryview(bytes(data))
        with self._objects.lock:
            if key in self._objects.values or key in self._objects.reserved:
                return False
            self._objects.values[key] = value
        return True

    def replace(self, key: str, data: ReadableBuffer, *, expected: bytes) -> bool:
        check_new_key(key)
        value = memoryview(bytes(data))
        with self._objects.lock:
            current = self._objects.values.get(key)
            if current is None or bytes(current) != expected:
                return False
            self._objects.values[key] = value
        return True

    def sync(self) -> None:
        """Nothing to do: no memory survives a loss of power."""

    def list(self) -> Entries:
        with self._objects.lock:
            return [Entry(key, value.nbytes) for key, value in sorted(self._objects.values.items())]

    def delete(self, key: str, *, missing_ok: bool = False) -> None:
        check_key(key)
        with self._objects.lock:
            value = self._objects.values.pop(key, None)
        if value is None and not missing_ok:
            raise self._not_found(key)

    @contextmanager
    def hold(self, key: str) -> Generator[None]:
        with self.create(key), self._objects.lock:
            self._objects.held.add(key)
        try:
            yield
        finally:
            with self._objects.lock:
                self._objects.held.discard(key)
                self._objects.values.pop(key, None)

    def is_held(self, key: str) -> bool:
        check_key(key)
        with self._objects.lock:
            return key in self._objects.held

    def delete_unless_held(self, key: str) -> bool:
        check_key(key)
        with self._objects.lock:
            if key in self._objects.held:
                return False
            self._objects.values.pop(key, None)
        return True

    def close(self) -> None:
        """Nothing to do: the objects stay until `forget_memory`."""

    def _not_found(self, key: str) -> NotFoundError:
        return NotFoundError(f"{key!r} is not in {self.location}")

    def _require(self, key: str, value: memoryview, offset: int, nbytes: int) -> None:
        if nbytes and offset + nbytes > value.nbytes:
            found = max(0, value.nbytes - offset)
            raise too_short(f"{self.location}/{key}", offset, nbytes, found)


class MemorySink(FinishOrAbort):
    """A fresh object in memory; it becomes visible when it is finished."""

    def __init__(self, objects: _Objects, key: str) -> None:
        self._objects = objects
        self._key = key
        self._content: bytearray | None = bytearray()
        self._is_finished = False

    def write(self, offset: int, buffers: Sequence[ReadableBuffer]) -> None:
        """Write all bytes of `buffers` from `offset` on."""
        views = readable_views(buffers)
        check_range(offset, total_nbytes(views))
        with self._objects.lock:
            content = self._open_content()
            missing = offset + total_nbytes(views) - len(content)
            if views and missing > 0:
                content.extend(bytes(missing))
            for view in views:
                content[offset : offset + view.nbytes] = view
                offset += view.nbytes

    def finish(self) -> None:
        """Make the object visible."""
        with self._objects.lock:
            if self._is_finished:
                return
            self._objects.values[self._key] = memoryview(self._open_content()).toreadonly()
            self._objects.reserved.discard(self._key)
            self._content, self._is_finished = None, True

    def abort(self) -> None:
        """Forget what was written; without effect once the sink is finished."""
        with self._objects.lock:
            if self._content is not None:
                self._objects.reserved.discard(self._key)
                self._content = None

    def _open_content(self) -> bytearray:
        if self._content is None:
            raise InvalidError(f"the sink of {self._key!r} is closed: create another object")
        return self._content

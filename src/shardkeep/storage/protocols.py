"""What can a storage do? One small protocol for each verb; a function asks only for what it uses.

A storage holds *objects*, bytes by key, within one checkpoint folder. There is no rename, since
object stores have none: an object appears once, by `create` or `put_if_absent`, and only
`replace` changes it, as a whole.

Whatever fails in the storage is a `StorageError`; a key that is not there a `NotFoundError`; a
key that makes no sense an `InvalidError`; an object that ends early, or is a link, a folder, a
pipe or a device, a `CorruptError`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self, TypeAlias, runtime_checkable

from shardkeep.storage.keys import is_temporary

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer


class Entry(NamedTuple):
    """An object as `list` names it.

    >>> Entry(".tmp-0123456789abcdef", 5).is_temporary
    True
    """

    key: str
    nbytes: int

    @property
    def is_temporary(self) -> bool:
        """True for what a broken-off commit left, or one under way still needs."""
        return is_temporary(self.key)


# Within a class with a method `list`, the builtin goes by another name.
Entries: TypeAlias = list[Entry]


class CanReadInto(Protocol):
    """Fills memory that the caller owns."""

    def read_into(self, key: str, offset: int, buffers: Sequence[WriteableBuffer]) -> None:
        """Fill `buffers`, one after the other, with the object's bytes from `offset` on.

        CorruptError if the object ends before they are full; what they hold then is undefined.
        """
        ...


ReadAt: TypeAlias = Callable[[int, list[memoryview]], None]
"""Fills flat, writable views, which it uses up, with the bytes from an offset on."""


@runtime_checkable
class CanKeepOpen(Protocol):
    """Looks an object up once for many reads. Not every storage has to."""

    def reading(self, key: str) -> AbstractContextManager[ReadAt]:
        """As `read_into`, of the object that `key` names now."""
        ...


class CanRead(Protocol):
    """Hands out bytes."""

    def read(self, key: str, offset: int, nbytes: int) -> bytes:
        """`nbytes` bytes from `offset` on.

        CorruptError, before memory is taken, if fewer are there.
        """
        ...


@dataclass(frozen=True, slots=True)
class ReadCosts:
    """What a read from a distance costs, and how many may be under way at once.

    >>> ReadCosts(0.03, 100e6, 16).max_gap_nbytes
    3000000
    """

    request_seconds: float
    """Until the first byte comes."""
    nbytes_per_second: float
    """Of one request."""
    in_flight: int

    @property
    def max_gap_nbytes(self) -> int:
        """What is read over in the time that a request of its own would take."""
        return int(self.request_seconds * self.nbytes_per_second)


@runtime_checkable
class CanFetch(Protocol):
    """Reads from a distance: each read is a request, and many may be under way at once."""

    def fetch(self, key: str, offset: int, nbytes: int) -> memoryview:
        """As `read`, in the memory that the bytes came in."""
        ...

    def read_start(self, key: str, nbytes: int) -> tuple[bytes, int]:
        """The first bytes, at most `nbytes`, and the object's size, by one request."""
        ...

    def costs(self) -> ReadCosts:
        """What a read costs, as far as that is known."""
        ...


class CanGet(Protocol):
    """Hands out small objects, whole: what is committed is read by it."""

    def get(self, key: str, *, max_nbytes: int) -> bytes:
        """The whole value at one moment, also while others replace it.

        CorruptError, before memory is taken, if it has more than `max_nbytes` bytes.
        """
        ...


class CanMeasure(Protocol):
    """Tells an object's size."""

    def size(self, key: str) -> int:
        """The object's number of bytes."""
        ...


@runtime_checkable
class CanMap(Protocol):
    """Shows an object's bytes without a copy. Not every storage can."""

    def map(self, key: str) -> memoryview:
        """The object's bytes, read-only; alive as long as the view or one made from it."""
        ...


class Sink(Protocol):
    """A fresh object being written. Use it in `with`: finished at the end, aborted on an error.

    Until `finish` returns, nobody may rely on the object: it may be invisible, or half there.
    """

    def write(self, offset: int, buffers: Sequence[ReadableBuffer]) -> None:
        """Write all bytes of `buffers`, one after the other, from `offset` on.

        Any order of offsets; several threads may write at once. Bytes that were never written
        between others read as zeros. A sink whose write failed can only be aborted.
        """
        ...

    def finish(self) -> None:
        """Complete the object, and make it durable if the storage is. A failure is final.

        Its name is durable after the storage's `sync`.
        """
        ...

    def abort(self) -> None:
        """Remove what was written; without effect once the sink is finished."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


@runtime_checkable
class StreamSink(Protocol):
    """A sink that sends bytes in order, from the memory that they lie in."""

    def write(self, offset: int, buffers: Sequence[ReadableBuffer]) -> None: ...

    def write_kept(self, offset: int, buffers: Sequence[ReadableBuffer]) -> None:
        """As `write`; the memory must stay as it is until the sink is finished or aborted."""
        ...


class CanCreate(Protocol):
    """Makes large objects, piece by piece."""

    def create(self, key: str) -> Sink:
        """A sink for a fresh object; ConflictError, here or on `finish`, if the key is taken."""
        ...


class CanPutIfAbsent(Protocol):
    """Makes small objects, at once: one half of a commit."""

    def put_if_absent(self, key: str, data: ReadableBuffer) -> bool:
        """True if `data` is now the object's value; False if there was one, which stays.

        Atomic: readers see nothing or all. Durable, if the storage is, when it returns.
        OutcomeUnknownError if `data` may be there or not; after any other error it is not.
        """
        ...


class CanReplace(Protocol):
    """Exchanges small objects, at once: the other half of a commit."""

    def replace(self, key: str, data: ReadableBuffer, *, expected: bytes) -> bool:
        """True if the value was `expected` and is now `data`; False if it was another or absent.

        Atomic, durable and failing as `put_if_absent`. Of several at once with the same
        `expected`, one gets True.
        """
        ...


class CanSync(Protocol):
    """Makes names durable."""

    def sync(self) -> None:
        """Return when the names of all objects finished so far survive a loss of power."""
        ...


class CanList(Protocol):
    """Names what is there."""

    def list(self) -> Entries:
        """All objects by key, temporary ones included; what is no object is left out."""
        ...


class CanDelete(Protocol):
    """Removes objects."""

    def delete(self, key: str, *, missing_ok: bool = False) -> None:
        """Remove the object; NotFoundError if there is none, unless `missing_ok`.

        Not ordered against a `replace` of the same key at the same time, which may win.
        """
        ...


@runtime_checkable
class CanHold(Protocol):
    """Shows that something is under way, as long as its process lives. Not every storage can."""

    def hold(self, key: str) -> AbstractContextManager[None]:
        """A fresh, empty object that is held until the end of `with`, and removed then.

        If the process dies, the object may stay; nobody holds it any more.
        """
        ...

    def is_held(self, key: str) -> bool:
        """Whether somebody holds the object now; also if that cannot be found out."""
        ...

    def delete_unless_held(self, key: str) -> bool:
        """True if the object is gone now, False if somebody holds it."""
        ...


class Upload(NamedTuple):
    """An object that was begun and never finished, of which no list tells."""

    key: str
    upload_id: str


@runtime_checkable
class CanFindUploads(Protocol):
    """Knows what was begun and never finished. Not every storage leaves such."""

    def unfinished(self) -> Sequence[Upload]:
        """All of them; none if the credentials do not allow to ask."""
        ...

    def abort_unfinished(self, upload: Upload) -> None:
        """Free what is there of it."""
        ...


@runtime_checkable
class Storage(
    CanReadInto,
    CanRead,
    CanGet,
    CanMeasure,
    CanCreate,
    CanPutIfAbsent,
    CanReplace,
    CanSync,
    CanList,
    CanDelete,
    Protocol,
):
    """Every verb that every storage has. Threads may share it."""

    @property
    def location(self) -> str:
        """Where the objects are, for messages."""
        ...

    def close(self) -> None:
        """Let go of open files. Call it when no other thread uses the storage any more."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

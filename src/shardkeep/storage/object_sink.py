"""How does a large object get into an object store, without being in memory as a whole?

Its bytes go out in order, in parts, several at once, straight from the memory that they lie in.
What comes before its turn waits. A small object is put at once.

A finished upload whose answer was lost is found out by the name that every upload carries. One that
fails is aborted, so that its parts are freed, and begun anew as long as its bytes are still there.
"""

from __future__ import annotations

import errno
import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from shardkeep.errors import ConflictError, InvalidError, NotFoundError, StorageError
from shardkeep.storage.buffers import check_range, readable_views, total_nbytes
from shardkeep.storage.object_commit import put_if_absent
from shardkeep.storage.object_requests import ATTEMPT, Requests
from shardkeep.storage.sinks import FinishOrAbort

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

# What S3 allows; the others allow more.
_MAX_PARTS = 10_000
# So much may wait for what comes before it.
_MAX_WAITING_NBYTES = 256 * 2**20
# So much of copies is kept to begin an upload anew.
_MAX_KEPT_NBYTES = 64 * 2**20
_MAX_UPLOADS = 4
# What is handed on at once; several make a part.
_STEP_NBYTES = 2**20


class ObjectSink(FinishOrAbort):
    """A fresh object in an object store; it becomes visible when it is finished."""

    def __init__(
        self, requests: Requests, key: str, *, part_nbytes: int, parts_in_flight: int
    ) -> None:
        self._requests = requests
        self._key = key
        self._part_nbytes = part_nbytes
        self._parts_in_flight = parts_in_flight
        self._waiting: dict[int, memoryview] = {}
        self._first: list[memoryview] = []
        """The object's beginning, until it is known whether more comes than one part."""
        self._next = self._copied_nbytes = 0
        self._upload: _Upload | None = None
        self._is_open, self._is_finished = True, False
        self._lock = threading.Lock()

    def write(self, offset: int, buffers: Sequence[ReadableBuffer]) -> None:
        """Write all bytes of `buffers` from `offset` on. The memory is the caller's again."""
        copies = [memoryview(bytes(view)) for view in readable_views(buffers)]
        self._take(offset, copies, lasts=False)

    def write_kept(self, offset: int, buffers: Sequence[ReadableBuffer]) -> None:
        """The same without a copy: the memory stays as it is until the sink is finished."""
        self._take(offset, readable_views(buffers), lasts=True)

    def _take(self, offset: int, views: list[memoryview], *, lasts: bool) -> None:
        check_range(offset, total_nbytes(views))
        with self._lock:
            self._require_open()
            for view in views:
                if offset < self._next or offset in self._waiting:
                    raise InvalidError(f"{self._key!r}: byte {offset} was written before")
                self._waiting[offset] = view
                offset += len(view)
            self._copied_nbytes += 0 if lasts else total_nbytes(views)
            self._hand_on()
            if total_nbytes(list(self._waiting.values())) > _MAX_WAITING_NBYTES:
                raise StorageError(
                    errno.ENOBUFS,
                    f"{_MAX_WAITING_NBYTES} bytes wait for byte {self._next}: write an object of "
                    "an object store more or less in order",
                    self._requests.place(self._key),
                )

    def _hand_on(self) -> None:
        """Send what has its turn."""
        while (view := self._waiting.pop(self._next, None)) is not None:
            self._next += len(view)
            self._send(view)

    def _send(self, view: memoryview) -> None:
        if self._next > _MAX_PARTS * self._part_nbytes:
            raise StorageError(
                errno.EFBIG,
                f"an object may have {_MAX_PARTS} parts of {self._part_nbytes} bytes: pass "
                "shardkeep.ObjectStorage(url, part_nbytes=...) with larger ones",
                self._requests.place(self._key),
            )
        if self._upload is None:
            self._first.append(view)
            if self._next <= self._part_nbytes:
                return
            self._upload = _Upload(
                self._requests, self._key, self._part_nbytes, self._parts_in_flight
            )
            pieces, self._first = self._first, []
        else:
            pieces = [view]
        if self._copied_nbytes > _MAX_KEPT_NBYTES:
            self._upload.forget()
        for piece in pieces:
            for at in range(0, len(piece), _STEP_NBYTES):
                self._upload.put(piece[at : at + _STEP_NBYTES])

    def finish(self) -> None:
        """Complete the object; ConflictError if its key was taken meanwhile."""
        with self._lock:
            if self._is_finished:
                return
            self._require_open()
            self._fill_gaps()
            self._is_open = False
            is_taken = self._put_small() if self._upload is None else self._upload.finish()
            if is_taken:
                place = self._requests.place(self._key)
                raise ConflictError(f"{place} is already there; objects are never overwritten")
            self._is_finished = True

    def _fill_gaps(self) -> None:
        while self._waiting:
            gap = min(min(self._waiting) - self._next, _STEP_NBYTES)
            self._waiting[self._next] = memoryview(bytes(gap))
            self._hand_on()

    def _put_small(self) -> bool:
        data = b"".join(self._first)
        self._first = []
        return put_if_absent(self._requests, self._key, data) is None

    def abort(self) -> None:
        """Forget what was written; without effect once the sink is finished."""
        with self._lock:
            self._is_open = False
            self._waiting, self._first = {}, []
            upload, self._upload = self._upload, None
        if upload is not None and not self._is_finished:
            upload.abort()

    def _require_open(self) -> None:
        if not self._is_open:
            raise InvalidError(f"the sink of {self._key!r} is closed: create another object")


class _Upload:
    """An upload in parts: a thread in which obstore takes the bytes as it has room for them."""

    def __init__(self, requests: Requests, key: str, part_nbytes: int, in_flight: int) -> None:
        self._requests = requests
        self._key = key
        self._part_nbytes = part_nbytes
        self._in_flight = in_flight
        self._attempt = secrets.token_hex(16)
        self._views: list[memoryview] = []
        self._at = 0
        """How many of the views were taken; those before are kept for a further upload."""
        self._keeps = True
        self._has_all = self._is_aborted = False
        self._error: Exception | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="shardkeep-upload", daemon=True)
        self._thread.start()

    def put(self, view: memoryview) -> None:
        """Hand bytes on; waits while so much as a part is there already."""
        most = max(2, self._part_nbytes // _STEP_NBYTES)
        with self._changed:
            self._changed.wait_for(lambda: len(self._views) - self._at < most or self._error)
            if self._error is not None:
                raise self._error
            self._views.append(view)
            self._changed.notify_all()

    def forget(self) -> None:
        """Keep nothing any more of what was taken."""
        with self._changed:
            self._keeps = False
            del self._views[: self._at]
            self._at = 0

    def finish(self) -> bool:
        """Wait until the object stands; True if its key was taken."""
        # Uploads in parts know no condition: a look before the end is all that can be had.
        if self._requests.version(self._key) is not None:
            return True
        with self._changed:
            self._has_all = True
            self._changed.notify_all()
        self._thread.join()
        if self._error is not None:
            raise self._error
        return False

    def abort(self) -> None:
        with self._changed:
            self._is_aborted = True
            self._changed.notify_all()
        self._thread.join()
        if self._error is None:
            with suppress(StorageError, NotFoundError):
                self._requests.delete(self._key)

    def _run(self) -> None:
        try:
            for number in range(1, _MAX_UPLOADS + 1):
                if self._send(is_last=number == _MAX_UPLOADS):
                    return
                with self._changed:
                    self._at = 0
        except Exception as error:
            with self._changed:
                self._error = error
                self._views.clear()
                self._at = 0
                self._changed.notify_all()

    def _send(self, *, is_last: bool) -> bool:
        """One upload; False if it failed and may be begun anew."""
        from obstore import put

        def call() -> None:
            put(
                self._requests.store,
                self._requests.path(self._key),
                self._pieces(),
                attributes={ATTEMPT: self._attempt},
                chunk_size=self._part_nbytes,
                max_concurrency=self._in_flight,
            )

        try:
            self._requests.run("writing it", self._key, call, once=True)
        except StorageError as error:
            if self._has_all and self._stands():
                return True
            if is_last or self._is_aborted or not self._keeps or error.errno != errno.EIO:
                raise
            return False
        return True

    def _stands(self) -> bool:
        """Whether the upload was completed, and only the answer lost."""
        found = self._requests.attempt(self._key)
        return found is not None and found[0] == self._attempt

    def _pieces(self) -> Iterator[memoryview]:
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: len(self._views) > self._at or self._has_all or self._is_aborted
                )
                if self._is_aborted:
                    raise InterruptedError("the upload is aborted")
                if len(self._views) == self._at:
                    return
                view = self._views[self._at] if self._keeps else self._views.pop(0)
                self._at += self._keeps
                self._changed.notify_all()
            yield view

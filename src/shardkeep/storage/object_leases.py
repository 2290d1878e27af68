"""How does a process show an object store that it is at work, so that a clean-up leaves it alone?

An object store has no locks that end with a process. So the holder puts an object, its lease, and
puts it again every few seconds. Whoever asks compares the age of the lease, by the clock of the
store alone, with the time that the lease itself names.

A holder may be stopped for longer than that, and go on. So a clean-up first takes the lease over:
it replaces it, on the condition that it is still the one it saw. From then on the holder's next
renewal is refused; and a holder whose last renewal is not recent renews before it commits. So of a
clean-up and a commit only one succeeds.
"""

from __future__ import annotations

import errno
import secrets
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from datetime import datetime

import msgspec

from shardkeep.errors import ConflictError, NotFoundError, ShardkeepError, StorageError
from shardkeep.storage.keys import new_temporary_key
from shardkeep.storage.object_commit import put_if_absent, put_if_unchanged
from shardkeep.storage.object_requests import Requests, Version, version_of

# A lease is renewed so often in the time for which it holds.
_RENEWALS = 12
_MAX_LEASE_NBYTES = 4096


class _Lease(msgspec.Struct, frozen=True):
    """What a lease says of itself."""

    holder: str
    lease_seconds: float
    renewals: int
    """Makes each value another: stores name versions after their bytes."""


class Leases:
    """The leases that this storage holds."""

    def __init__(self, requests: Requests, *, seconds: float) -> None:
        self._requests = requests
        self._seconds = seconds
        self._held: dict[str, _Held] = {}
        self._lock = threading.Lock()

    @contextmanager
    def hold(self, key: str) -> Generator[None]:
        """A fresh lease, renewed until the end, and removed then."""
        lease = _Held(self._requests, key, self._seconds)
        with self._lock:
            self._held[key] = lease
        try:
            yield
        finally:
            with self._lock:
                self._held.pop(key, None)
            lease.let_go()

    def require_fresh(self) -> None:
        """StorageError if a clean-up took over what this storage holds; before a commit."""
        with self._lock:
            held = list(self._held.values())
        for lease in held:
            lease.require_fresh()

    def is_held(self, key: str) -> bool:
        """Whether the lease is renewed; also if that cannot be found out."""
        with suppress(StorageError):
            return _look(self._requests, key)[0]
        return True

    def delete_unless_held(self, key: str) -> bool:
        """Take the lease over and remove it, unless it is renewed."""
        is_held, version = _look(self._requests, key)
        if is_held:
            return False
        if version is not None and not _take_over(self._requests, key, version):
            return False
        self._requests.delete(key)
        return True


class _Held:
    """One lease, and the thread that renews it."""

    def __init__(self, requests: Requests, key: str, seconds: float) -> None:
        self._requests = requests
        self._key = key
        self._seconds = seconds
        self._holder = secrets.token_hex(8)
        self._renewals = 0
        self._is_lost = False
        self._renewing = threading.Lock()
        self._renewed_at = time.monotonic()
        version = put_if_absent(requests, key, self._value())
        if version is None:
            raise ConflictError(
                f"{requests.place(key)} is there already; if nobody is at work here, prune "
                "removes it"
            )
        self._version = version
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shardkeep-lease", daemon=True)
        self._thread.start()

    def _value(self) -> bytes:
        return msgspec.json.encode(_Lease(self._holder, self._seconds, self._renewals))

    def _run(self) -> None:
        while not self._end.wait(self._seconds / _RENEWALS):
            with suppress(ShardkeepError):
                self._renew()

    def _renew(self) -> None:
        with self._renewing:
            if self._is_lost or self._end.is_set():
                return
            start = time.monotonic()
            self._renewals += 1
            version = put_if_unchanged(self._requests, self._key, self._value(), self._version)
            if version is None:
                self._is_lost = True
            else:
                self._version, self._renewed_at = version, start

    def require_fresh(self) -> None:
        """StorageError unless the lease will still hold for half of its time."""
        if time.monotonic() - self._renewed_at > self._seconds / 2:
            self._renew()
        if self._is_lost:
            raise StorageError(
                errno.ESTALE,
                f"this save gave no sign of life for {self._seconds:g} s, and a clean-up took it "
                "for dead: what it wrote is being removed; save again",
                self._requests.place(self._key),
            )

    def let_go(self) -> None:
        self._end.set()
        with self._renewing:
            is_lost = self._is_lost
        # What stays is harmless: it is not renewed any more.
        with suppress(StorageError):
            if not is_lost:
                self._requests.delete(self._key, once=True)


def _look(requests: Requests, key: str) -> tuple[bool, Version | None]:
    """Whether a lease holds, and its version; None for what is no lease, or not there."""
    try:
        data, found, _ = requests.whole(key, lambda _: None)
    except NotFoundError:
        return False, None
    try:
        lease = msgspec.json.decode(data[:_MAX_LEASE_NBYTES], type=_Lease)
    except msgspec.DecodeError:
        return False, None
    age = (_store_time(requests) - found["last_modified"]).total_seconds()
    return age <= lease.lease_seconds, version_of(found)


def _store_time(requests: Requests) -> datetime:
    """What time it is on the store's clock: when an object that is put now was made."""
    key = new_temporary_key()
    try:
        requests.put(key, b"clock", attempt="", mode="overwrite", once=False)
        return requests.head(key)["last_modified"]
    finally:
        with suppress(StorageError):
            requests.delete(key, once=True)


def _take_over(requests: Requests, key: str, version: Version) -> bool:
    """Make every further renewal fail; False if one came first."""
    return put_if_unchanged(requests, key, b"taken over by a clean-up", version) is not None

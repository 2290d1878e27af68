"""How does a small value appear under its key in an object store, all at once and by one only?

By a conditional put: if nothing is there (`If-None-Match: *`), or if what is there is still the
version that was seen (`If-Match` and its ETag). Every put carries a name of its own. When an answer
is lost, the same put is sent again under the same condition: it succeeds, or is refused, and then
the name at the value says whether the lost one had been carried out. So a put that is delayed
somewhere can never come true after another answer was given.

A store that ignores conditions would let two savers win. It is found out by a probe.
"""

from __future__ import annotations

import errno
import random
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from shardkeep.errors import NotFoundError, ShardkeepError, StorageError, UnsupportedError
from shardkeep.storage.failures import OutcomeUnknownError
from shardkeep.storage.keys import new_temporary_key
from shardkeep.storage.object_requests import Refused, Requests, Version, version_of

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
# S3 takes 2 KB of such words.
_MAX_LINE = 32
# No object has this version; GCS counts them, the others name them.
_NO_VERSION: Version = {"e_tag": '"00000000000000000000000000000000"', "version": "1"}
_honest: set[str] = set()
"""Buckets that this process has probed."""
_probing = threading.Lock()


def put_if_absent(requests: Requests, key: str, data: bytes) -> Version | None:
    """The version of `data`, which is now the value of `key`; None if it had one."""
    return _Put(requests, key, data).run("create", lambda: requests.version(key) is None)


def replace(requests: Requests, key: str, data: bytes, expected: bytes) -> bool:
    """True if the value of `key` was `expected` and is now `data`."""

    def seen() -> tuple[Version, str] | None:
        try:
            found, meta, line = requests.whole(key, lambda _: None)
        except NotFoundError:
            return None
        return (version_of(meta), line) if found == expected else None

    first = seen()
    if first is None:
        return False
    put = _Put(requests, key, data, line=first[1])
    return put.run(first[0], lambda: seen() == first) is not None


def put_if_unchanged(requests: Requests, key: str, data: bytes, version: Version) -> Version | None:
    """The new version if the object was still there in this one; else None."""
    holds: Callable[[], bool] = lambda: requests.version(key) == version  # noqa: E731
    return _Put(requests, key, data).run(version, holds)


class _Put:
    """One put, which may take several requests.

    `line` names the puts that made the value it replaces, the last one first: if others replace
    what this one put before its answer is found to be lost, the line still tells that it was there.
    """

    def __init__(self, requests: Requests, key: str, data: bytes, *, line: str = "") -> None:
        self._requests = requests
        self._key = key
        self._data = data
        self._attempt = secrets.token_hex(16)
        self._line = ",".join([self._attempt, *line.split(",")][:_MAX_LINE]).rstrip(",")

    def run(self, mode: Any, holds: Callable[[], bool]) -> Version | None:
        start, pause = time.monotonic(), _FIRST_PAUSE
        while True:
            try:
                return self._try(mode, holds)
            except _AgainError as error:
                if time.monotonic() - start > self._requests.deadline:
                    raise self._unknown(error) from error
            time.sleep(random.uniform(0.5, 1.0) * pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _try(self, mode: Any, holds: Callable[[], bool]) -> Version | None:
        try:
            return self._requests.put(
                self._key, self._data, attempt=self._line, mode=mode, once=True
            )
        except (Refused, NotFoundError, StorageError) as error:
            if isinstance(error, StorageError) and error.errno == errno.EACCES:
                # Refused for good, so that it was not carried out.
                raise
            try:
                return self._look_back(holds, str(error))
            except StorageError as second:
                raise _AgainError(second.strerror or str(second)) from error

    def _look_back(self, holds: Callable[[], bool], said: str) -> Version | None:
        """Was it carried out, though the answer was lost? Or kept off by somebody else's?"""
        found = self._requests.attempt(self._key)
        if found is not None and self._attempt in found[0].split(","):
            return found[1]
        if holds():
            # Not yet, that is: of two puts at the same moment some stores refuse both.
            raise _AgainError(said)
        return None

    def _unknown(self, error: _AgainError) -> OutcomeUnknownError:
        return OutcomeUnknownError(
            errno.EIO,
            f"whether it holds the new value is unknown ({error}); read it before removing "
            "anything that the new value refers to",
            self._requests.place(self._key),
        )


class _AgainError(Exception):
    """The put was not carried out, and nothing speaks against it."""


def require_conditions(requests: Requests) -> None:
    """UnsupportedError if the store carries out puts whose condition does not hold.

    Asked once for each bucket and process.
    """
    with _probing:
        if requests.bucket not in _honest:
            _probe(requests)
            _honest.add(requests.bucket)


def ask_for_conditions(requests: Requests) -> None:
    """Have the store probed meanwhile, by a thread; whoever requires conditions hears of it."""

    def ask() -> None:
        # If it fails, it is asked again, and says why.
        with suppress(ShardkeepError):
            require_conditions(requests)

    if requests.bucket not in _honest:
        threading.Thread(target=ask, name="shardkeep-probe", daemon=True).start()


def _probe(requests: Requests) -> None:
    key = new_temporary_key()
    conditions: Mapping[str, Any] = {"If-None-Match": "create", "If-Match": _NO_VERSION}
    try:
        requests.put(key, b"probe", attempt="", mode="overwrite", once=False)
        for header, mode in conditions.items():
            with suppress(Refused, NotFoundError):
                requests.put(key, b"again", attempt="", mode=mode, once=False)
                raise _dishonest(requests, header)
    finally:
        # What stays is harmless: prune removes it.
        with suppress(StorageError):
            requests.delete(key, once=True)


def _dishonest(requests: Requests, header: str) -> UnsupportedError:
    return UnsupportedError(
        f"{requests.address.root} ignores {header}: of two saves to one path both could win, and "
        "one be lost. Use a store with conditional writes or, if never two jobs save to one path, "
        "pass shardkeep.ObjectStorage(url, conditional=False)"
    )

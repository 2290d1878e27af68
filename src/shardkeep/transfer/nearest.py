"""Which copy of an object is read, when several storages may have one? The nearest that is good."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from shardkeep.errors import NotFoundError, StorageError
from shardkeep.storage import Storage

T = TypeVar("T")


class Nearest:
    """Objects that may be in any of `storages`, the nearest first; there may be none at all.

    What a storage does not have, or cannot give, is asked of the next. Whoever finds that a copy
    is damaged says so by `next_copy`, and reads again.
    """

    def __init__(self, storages: Sequence[Storage]) -> None:
        self._storages = list(storages)
        self._at: dict[str, int] = {}
        self._lock = threading.Lock()
        self.bad: set[tuple[str, str]] = set()
        """The storage's location and the key of every copy that was given up."""

    @property
    def location(self) -> str:
        return " or ".join(one.location for one in self._storages) or "the local tier"

    def copy_of(self, key: str) -> int:
        """The number of the copy that is read now."""
        return self._at.get(key, 0)

    def next_copy(self, key: str, after: int) -> bool:
        """Have the copy after this one read from now on; False if there is none."""
        with self._lock:
            if after < len(self._storages):
                self.bad.add((self._storages[after].location, key))
            at = self._at[key] = max(self._at.get(key, 0), after + 1)
        return at < len(self._storages)

    def read_into(self, key: str, offset: int, buffers: Sequence[Any]) -> None:
        self._ask(key, lambda storage: storage.read_into(key, offset, buffers))

    def read(self, key: str, offset: int, nbytes: int) -> bytes:
        return self._ask(key, lambda storage: storage.read(key, offset, nbytes))

    def get(self, key: str, *, max_nbytes: int) -> bytes:
        return self._ask(key, lambda storage: storage.get(key, max_nbytes=max_nbytes))

    def size(self, key: str) -> int:
        return self._ask(key, lambda storage: storage.size(key))

    def close(self) -> None:
        for storage in self._storages:
            storage.close()

    def _ask(self, key: str, act: Callable[[Storage], T]) -> T:
        at = self.copy_of(key)
        if at >= len(self._storages):
            raise NotFoundError(f"{key!r} has no good copy in {self.location}")
        try:
            return act(self._storages[at])
        except (NotFoundError, StorageError):
            # Not `next_copy`: what is not there is not damaged.
            if at + 1 >= len(self._storages):
                raise
            with self._lock:
                self._at[key] = max(self._at.get(key, 0), at + 1)
            return self._ask(key, act)

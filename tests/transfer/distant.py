"""A storage at a distance without a server: memory, of which each read counts as a request."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

from shardkeep.storage import MemoryStorage, ReadCosts, forget_memory

_numbers = itertools.count()


class DistantMemory(MemoryStorage):
    """Counts requests; what they cost is said, not measured."""

    said = ReadCosts(0.001, 1e6, 4)

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.requests = 0
        self.nbytes = 0

    def fetch(self, key: str, offset: int, nbytes: int) -> memoryview:
        self.requests += 1
        self.nbytes += nbytes
        return memoryview(self.read(key, offset, nbytes))

    def read_start(self, key: str, nbytes: int) -> tuple[bytes, int]:
        self.requests += 1
        size = self.size(key)
        return self.read(key, 0, min(nbytes, size)), size

    def costs(self) -> ReadCosts:
        return self.said


@contextmanager
def distant_memory() -> Iterator[DistantMemory]:
    """An empty one, forgotten at the end."""
    name = f"distant-{next(_numbers)}"
    try:
        yield DistantMemory(name)
    finally:
        forget_memory(name)

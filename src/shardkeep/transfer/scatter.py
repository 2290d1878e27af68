"""How are many small tensors filled that lie whole in a file?

Blocks are read and checked as ever, some at a time; from there each tensor's bytes are copied to
its memory. Nothing is made for a single tensor but numbers in columns: there may be many thousands.

Torch-free: memory is told by its address.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from shardkeep.boxes import Box
from shardkeep.manifest import TensorRecord, itemsize
from shardkeep.plan.reads import DIRECT_NBYTES, Runs, ScatterRead
from shardkeep.transfer.load import FilePlan, ReadRule
from shardkeep.transfer.open_manifest import Headers
from shardkeep.transfer.opened import Opened
from shardkeep.transfer.read import OpenFile

# What is read from near stays in the cache until it is copied out.
_NEAR_NBYTES = 2 * 1024 * 1024


class Memory(Protocol):
    """What holds memory in one piece."""

    @property
    def nbytes(self) -> int: ...


@dataclass(slots=True)
class _Alike:
    """Tensors of one dtype and shape of which the same box lies whole in the same file."""

    index: int
    box: Box
    nbytes: int
    records: list[TensorRecord] = field(default_factory=list[TensorRecord])
    memory: list[Memory] = field(default_factory=list[Memory])
    addresses: list[int] = field(default_factory=list[int])


class Scatter:
    """Small boxes of stored tensors that go to memory which lies in one piece."""

    def __init__(self, opened: Opened, headers: Headers) -> None:
        self._opened = opened
        self._headers = headers
        self._known: dict[object, _Alike | None] = {}

    @classmethod
    def of(cls, opened: Opened) -> Scatter | None:
        """None for foreign files, which are read in another way."""
        places = opened.places
        return cls(opened, places) if isinstance(places, Headers) else None

    def add(self, record: TensorRecord, box: Box, memory: Memory, address: int) -> bool:
        """Have memory filled, which must stay where it is; False if it is not a file's chunk.

        The box is kept by the caller.
        """
        # Boxes of tensors alike are one object: by its identity it is found much faster.
        known = record.grid, record.dtype, record.shape, id(box)
        if known not in self._known:
            self._known[known] = self._alike(record, box)
        alike = self._known[known]
        if alike is None or alike.nbytes != memory.nbytes:
            return False
        alike.records.append(record)
        alike.memory.append(memory)
        alike.addresses.append(address)
        return True

    def _alike(self, record: TensorRecord, box: Box) -> _Alike | None:
        nbytes = box.numel * itemsize(record.dtype)
        if not 0 < nbytes < DIRECT_NBYTES:
            return None
        chunks = self._opened.manifest.chunks_meeting(record, box)
        if len(chunks) != 1 or chunks[0][0] != box:
            return None
        return _Alike(chunks[0][1], box, nbytes)

    def plans(self, rule: ReadRule, *, threads: int) -> list[FilePlan]:
        """What to read of which file; reads the headers of these files, but no data."""
        by_file: dict[int, list[_Alike]] = {}
        for alike in self._known.values():
            if alike is not None and alike.records:
                by_file.setdefault(alike.index, []).append(alike)
        self._headers.fetch(by_file, threads=threads)
        found: list[FilePlan] = []
        for index, tensors in by_file.items():
            file, runs = self._headers.open_file(index), self._runs(index, tensors)
            found.append(FilePlan(index, file, list(_reads(file, runs, rule)), []))
        return found

    def _runs(self, index: int, found: Sequence[_Alike]) -> Runs:
        places = [self._headers.starts(index, one.records, one.box) for one in found]
        starts = np.concatenate([np.array(one, np.int64) for one in places])
        sizes = np.concatenate([np.full(len(one.records), one.nbytes) for one in found])
        addresses = np.concatenate([np.array(one.addresses, np.int64) for one in found])
        order = np.argsort(starts, kind="stable")
        kept = [one.memory for one in found]
        return Runs(starts[order], (starts + sizes)[order], addresses[order], kept)


def _reads(file: OpenFile, runs: Runs, rule: ReadRule) -> Iterator[ScatterRead]:
    """Reads that hold everything, each block in one of them, none without a byte that is wanted."""
    size = file.block_nbytes
    window = rule.window_nbytes if rule.in_spans else _NEAR_NBYTES
    step = max(size, window - window % size)
    for start, stop in _close_together(file, runs, rule.max_gap_nbytes):
        for at in range(start, stop, step):
            end = min(at + step, stop)
            before = int(np.searchsorted(runs.starts, end, "left"))
            if before and runs.stops[before - 1] > at:
                yield ScatterRead(at, end, runs)


def _close_together(file: OpenFile, runs: Runs, max_gap: int) -> Iterator[tuple[int, int]]:
    """Whole blocks that follow each other, small gaps included."""
    origin = file.data_start
    first = runs.starts - (runs.starts - origin) % file.block_nbytes
    last = runs.stops + (origin - runs.stops) % file.block_nbytes
    last = np.minimum(last, file.nbytes)
    breaks = np.flatnonzero(first[1:] - last[:-1] > max_gap) + 1
    edges = [0, *breaks.tolist(), len(first)]
    for begin, end in itertools.pairwise(edges):
        yield int(first[begin]), int(last[end - 1])

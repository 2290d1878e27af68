"""How are many small tensors filled that lie whole in a file?

Blocks are read and checked as ever, some at a time; from there each tensor's bytes are copied to
its memory. Nothing is made for a single tensor but numbers in columns: there may be many thousands.

Torch-free: memory is told by its address.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shardkeep.boxes import Box
from shardkeep.manifest import TensorRecord, itemsize
from shardkeep.plan.reads import DIRECT_NBYTES
from shardkeep.storage.rooms import empty_room
from shardkeep.transfer.load import MAX_GAP_NBYTES
from shardkeep.transfer.moving import copy_bytes
from shardkeep.transfer.open_manifest import Headers
from shardkeep.transfer.opened import Opened
from shardkeep.transfer.progress import Meter
from shardkeep.transfer.read import OpenFile, Reader

Ints = NDArray[np.int64]

# What is read in one go stays in the cache until it is copied out.
_WINDOW_NBYTES = 2 * 1024 * 1024


@dataclass(slots=True)
class _Alike:
    """Tensors of one dtype and shape of which the same box lies whole in the same file."""

    index: int
    box: Box
    nbytes: int
    records: list[TensorRecord] = field(default_factory=list[TensorRecord])
    addresses: list[int] = field(default_factory=list[int])


class Scatter:
    """Small boxes of stored tensors that go to memory which lies in one piece."""

    def __init__(self, opened: Opened, headers: Headers) -> None:
        self._opened = opened
        self._headers = headers
        self._known: dict[object, _Alike | None] = {}

    @classmethod
    def of(cls, opened: Opened) -> Scatter | None:
        """None where files are read in another way: foreign ones, and those at a distance."""
        places = opened.places
        if not isinstance(places, Headers) or places.is_distant:
            return None
        return cls(opened, places)

    def add(self, record: TensorRecord, box: Box, address: int, nbytes: int) -> bool:
        """Have so much memory filled; False if that is not small, or not a file's chunk.

        The memory, which stays in place, and the box are kept by the caller.
        """
        # Boxes of tensors alike are one object: by its identity it is found much faster.
        known = record.grid, record.dtype, record.shape, id(box)
        if known not in self._known:
            self._known[known] = self._alike(record, box)
        alike = self._known[known]
        if alike is None or alike.nbytes != nbytes:
            return False
        alike.records.append(record)
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

    def fill(self, *, threads: int, verify: bool, meter: Meter) -> int:
        """Fill all memory; the number of bytes read."""
        files = self._files(threads)
        windows = [(file, window) for file in files for window in file.windows()]
        total = sum([window.stop - window.start for _, window in windows])
        meter.expect(total)
        # Copies that each take a moment gain nothing by a second thread, but reads do.
        threads = max(1, min(threads, len(windows) // 2))
        run = _Run(Reader(self._opened.storage, threads=1, verify=verify, meter=meter), meter)
        shares = [windows[at::threads] for at in range(threads)]
        if threads == 1:
            run.fill(windows)
        else:
            with ThreadPoolExecutor(threads, "shardkeep-read") as pool:
                list(pool.map(run.fill, shares))
        return total

    def _files(self, threads: int) -> list[_File]:
        by_file: dict[int, list[_Alike]] = {}
        for alike in self._known.values():
            if alike is not None and alike.records:
                by_file.setdefault(alike.index, []).append(alike)
        self._headers.fetch(by_file, threads=threads)
        return [self._file(index, found) for index, found in by_file.items()]

    def _file(self, index: int, found: Sequence[_Alike]) -> _File:
        places = [self._headers.starts(index, one.records, one.box) for one in found]
        starts = np.concatenate([np.array(one, np.int64) for one in places])
        sizes = np.concatenate([np.full(len(one.records), one.nbytes) for one in found])
        targets = np.concatenate([np.array(one.addresses, np.int64) for one in found])
        order = np.argsort(starts, kind="stable")
        columns = [one[order] for one in (starts, starts + sizes, targets)]
        return _File(self._headers.open_file(index), *columns)


@dataclass(frozen=True, slots=True)
class _Window:
    """Whole blocks of a file, and where the bytes in them go."""

    start: int
    stop: int
    targets: list[int]
    sources: Ints
    """Bytes of the file."""
    sizes: list[int]


@dataclass(frozen=True, slots=True)
class _File:
    """What is wanted of one file, by where it lies."""

    file: OpenFile
    starts: Ints
    stops: Ints
    targets: Ints

    def windows(self) -> Iterator[_Window]:
        """Windows that hold everything, each block in one of them."""
        size = self.file.block_nbytes
        step = max(size, _WINDOW_NBYTES - _WINDOW_NBYTES % size)
        for start, stop in self._runs():
            for at in range(start, stop, step):
                yield self._window(at, min(at + step, stop))

    def _runs(self) -> Iterator[tuple[int, int]]:
        """Whole blocks that follow each other, small gaps included."""
        file, origin = self.file, self.file.data_start
        first = self.starts - (self.starts - origin) % file.block_nbytes
        last = self.stops + (origin - self.stops) % file.block_nbytes
        last = np.minimum(last, file.nbytes)
        breaks = np.flatnonzero(first[1:] - last[:-1] > MAX_GAP_NBYTES) + 1
        edges = [0, *breaks.tolist(), len(first)]
        for begin, end in itertools.pairwise(edges):
            yield int(first[begin]), int(last[end - 1])

    def _window(self, start: int, stop: int) -> _Window:
        """A tensor that goes beyond the window is in the next one, too, with its other bytes."""
        first = int(np.searchsorted(self.stops, start, "right"))
        last = int(np.searchsorted(self.starts, stop, "left"))
        starts, targets = self.starts[first:last], self.targets[first:last]
        begins = np.maximum(starts, start)
        sizes = np.minimum(self.stops[first:last], stop) - begins
        return _Window(start, stop, (targets + (begins - starts)).tolist(), begins, sizes.tolist())


class _Run:
    """Reads windows and copies them out."""

    def __init__(self, reader: Reader, meter: Meter) -> None:
        self._reader = reader
        self._meter = meter

    def fill(self, windows: Sequence[tuple[_File, _Window]]) -> None:
        """Fill what lies in these windows. From any thread; memory for one window is used again."""
        room = empty_room(max([window.stop - window.start for _, window in windows], default=0))
        address: int = room.ctypes.data
        for file, window in windows:
            self._reader.read_blocks(file.file, window.start, room[: window.stop - window.start])
            sources = (window.sources + (address - window.start)).tolist()
            copy_bytes(window.targets, sources, window.sizes)
            self._meter.add(window.stop - window.start)

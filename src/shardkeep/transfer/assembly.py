"""How do windows that arrive one by one fill what planned reads want?

A read takes bytes as they come, whichever window comes first. One that copies items which lie
across two windows, as those of other formats may, has its range put together first: its windows had
better come in order, so that few such ranges are in memory at a time.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from shardkeep.plan.cuts import cut_copy, rows_between, rows_of
from shardkeep.plan.reads import Copy, Part, Read, ScatterRead, SpanRead, WindowRead
from shardkeep.plan.sharing import Window
from shardkeep.transfer.columns import columns_of
from shardkeep.transfer.moving import copy_runs
from shardkeep.transfer.read import Array, FileReads, block_span, copy_out, copy_rows


@dataclass(slots=True)
class _Open:
    """A range of which some bytes have come."""

    scratch: Array
    missing_nbytes: int


@dataclass(slots=True)
class _File:
    reads: FileReads
    starts: list[int]
    reaches: list[int]
    """How far each read and those before it go."""
    open: dict[int, _Open] = field(default_factory=dict[int, _Open])
    told: dict[int, bool] = field(default_factory=dict[int, bool])

    def meeting(self, window: Window) -> range:
        """The reads that may want bytes of a window, by number."""
        first = bisect_right(self.reaches, window.start)
        return range(first, bisect_left(self.starts, window.stop))

    def takes_parts(self, number: int) -> bool:
        """Whether what a read wants of a window can be used without the rest."""
        if number not in self.told:
            self.told[number] = _takes_parts(self.reads, self.reads.reads[number])
        return self.told[number]


class Assembly:
    """Fills the targets of reads, which are by the file's index and in the order of the file.

    The reads are spans, windows and scatters; threads may bring their bytes at the same time.
    """

    def __init__(self, jobs: dict[int, FileReads]) -> None:
        self._files = {index: _file(job) for index, job in jobs.items()}
        self._lock = threading.Lock()

    def spans(self, index: int) -> list[tuple[int, int]]:
        """The bytes that are wanted of a file, whole blocks."""
        job = self._files[index].reads
        return [block_span(job.file, read.start, read.stop) for read in job.reads]

    def stands_alone(self, window: Window) -> bool:
        """Whether the window's bytes can be used at once, without those of others."""
        file = self._files[window.file]
        return all(
            file.takes_parts(number) or _is_within(file.reads.reads[number], window)
            for number in file.meeting(window)
        )

    def memory_of(self, window: Window) -> list[memoryview] | None:
        """The memory that the window's bytes go to as they are; None if it is not as simple."""
        file = self._files[window.file]
        found: list[memoryview] = []
        at = window.start
        for number in file.meeting(window):
            read = file.reads.reads[number]
            for part in _parts(read, window) if isinstance(read, SpanRead) else ():
                if part.start != at:
                    return None
                found.append(_place(file, part).data)
                at = part.stop
            if isinstance(read, WindowRead | ScatterRead):
                return None
        return found if at == window.stop else None

    def take(self, window: Window, data: Array) -> None:
        """Use the bytes of a window."""
        file = self._files[window.file]
        targets = file.reads.targets
        for number in file.meeting(window):
            read = file.reads.reads[number]
            if isinstance(read, SpanRead | ScatterRead):
                runs = columns_of(read, targets, window.start, window.stop)
                copy_runs(runs, data, window.start)
            elif isinstance(read, WindowRead) and file.takes_parts(number):
                _copy_parts(data, window, read, targets)
            elif isinstance(read, WindowRead):
                self._fill(file, number, read, window, data)

    def _fill(
        self, file: _File, number: int, read: WindowRead, window: Window, data: Array
    ) -> None:
        start, stop = max(read.start, window.start), min(read.stop, window.stop)
        if start >= stop:
            return
        part = data[start - window.start : stop - window.start]
        nbytes = read.stop - read.start
        if len(part) == nbytes:
            _copy_all(part, read, file.reads.targets)
            return
        with self._lock:
            open_ = file.open.get(number)
            if open_ is None:
                open_ = file.open[number] = _Open(np.empty(nbytes, np.uint8), nbytes)
            open_.scratch[start - read.start : start - read.start + len(part)] = part
            open_.missing_nbytes -= len(part)
            if open_.missing_nbytes:
                return
            del file.open[number]
        _copy_all(open_.scratch, read, file.reads.targets)


def _file(job: FileReads) -> _File:
    starts = [read.start for read in job.reads]
    return _File(job, starts, list(accumulate((read.stop for read in job.reads), max)))


def _takes_parts(job: FileReads, read: Read) -> bool:
    if not isinstance(read, WindowRead):
        return True
    # Windows end where blocks do.
    origin, block = job.file.data_start, job.file.block_nbytes
    return all(
        (copy.start - origin) % size == 0 == block % size
        for copy in read.copies
        for size in [job.targets[copy.target].itemsize]
    )


def _is_within(read: Read, window: Window) -> bool:
    """Whether a window has all that a read wants, or nothing of it."""
    is_whole = window.start <= read.start and read.stop <= window.stop
    return is_whole or read.stop <= window.start or window.stop <= read.start


def _parts(read: SpanRead, window: Window) -> Iterable[Part]:
    """What of a span lies in a window."""
    if window.start <= read.start and read.stop <= window.stop:
        return read.parts
    return _cut(read, window)


def _cut(read: SpanRead, window: Window) -> Iterator[Part]:
    for part in read.parts:
        start, stop = max(part.start, window.start), min(part.stop, window.stop)
        if start < stop:
            yield Part(part.target, start, stop, part.at + start - part.start)


def _place(file: _File, part: Part) -> Array:
    target = file.reads.targets[part.target].reshape(-1).view(np.uint8)
    return target[part.at : part.at + part.stop - part.start]


def _copy_all(scratch: Array, read: WindowRead, targets: Sequence[Array]) -> None:
    for copy in read.copies:
        copy_out(scratch, read.start, copy, targets[copy.target])


def _copy_parts(data: Array, window: Window, read: WindowRead, targets: Sequence[Array]) -> None:
    """What of a read lies in a window."""
    start, stop = window.start, window.stop
    for copy in read.copies:
        if start <= copy.start and copy.stop <= stop:
            copy_out(data, start, copy, targets[copy.target])
        elif copy.start < stop and start < copy.stop:
            _copy_between(data, start, stop, copy, targets[copy.target])


def _copy_between(data: Array, start: int, stop: int, copy: Copy, target: Array) -> None:
    """What of a copy lies between two bytes: whole rows, as nearly always, in one go."""
    rows = rows_between(copy, start, stop)
    if rows.first < rows.last:
        copy_rows(data, start, copy, target, (rows.dim, rows.first, rows.last))
    for row in rows.edges:
        for part in cut_copy(rows_of(copy, rows.dim, row, row + 1), start, stop):
            copy_out(data, start, part, target)

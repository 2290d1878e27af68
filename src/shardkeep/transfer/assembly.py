"""How do windows that arrive one by one fill what planned reads want?

Windows of a file come in the order of their places. A read that wants bytes as they are takes them
at once; one that copies boxes out of a range has the range put together first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from shardkeep.plan.reads import DirectRead, WindowRead
from shardkeep.plan.sharing import Window
from shardkeep.transfer.read import Array, FileReads, block_span, copy_out


@dataclass(slots=True)
class _Open:
    """A range of which some bytes have come."""

    scratch: Array
    missing_nbytes: int


@dataclass(slots=True)
class _File:
    reads: FileReads
    next: int = 0
    """The first read that no window has reached yet."""
    active: list[int] = field(default_factory=list[int])
    open: dict[int, _Open] = field(default_factory=dict[int, _Open])


class Assembly:
    """Fills the targets of reads, which are by the file's index and in the order of the file."""

    def __init__(self, jobs: dict[int, FileReads]) -> None:
        self._files = {index: _File(job) for index, job in jobs.items()}

    def spans(self, index: int) -> list[tuple[int, int]]:
        """The bytes that are wanted of a file, whole blocks."""
        job = self._files[index].reads
        return [block_span(job.file, read.start, read.stop) for read in job.reads]

    def take(self, window: Window, data: Array) -> None:
        """Use the bytes of a window."""
        file = self._files[window.file]
        reads = file.reads.reads
        while file.next < len(reads) and reads[file.next].start < window.stop:
            file.active.append(file.next)
            file.next += 1
        for number in file.active:
            self._fill(file, number, window, data)
        file.active = [n for n in file.active if reads[n].stop > window.stop]

    def _fill(self, file: _File, number: int, window: Window, data: Array) -> None:
        read = file.reads.reads[number]
        start, stop = max(read.start, window.start), min(read.stop, window.stop)
        if start >= stop:
            return
        part = data[start - window.start : stop - window.start]
        if isinstance(read, DirectRead):
            target = file.reads.targets[read.target].reshape(-1).view(np.uint8)
            target[start - read.start : stop - read.start] = part
        elif isinstance(read, WindowRead):
            self._put_together(file, number, read, start, part)

    def _put_together(
        self, file: _File, number: int, read: WindowRead, start: int, part: Array
    ) -> None:
        nbytes = read.stop - read.start
        if len(part) == nbytes:
            _copy_all(part, read, file.reads.targets)
            return
        open_ = file.open.get(number)
        if open_ is None:
            open_ = file.open[number] = _Open(np.empty(nbytes, np.uint8), nbytes)
        open_.scratch[start - read.start : start - read.start + len(part)] = part
        open_.missing_nbytes -= len(part)
        if not open_.missing_nbytes:
            _copy_all(file.open.pop(number).scratch, read, file.reads.targets)


def _copy_all(scratch: Array, read: WindowRead, targets: Sequence[Array]) -> None:
    for copy in read.copies:
        copy_out(scratch, read.start, copy, targets[copy.target])

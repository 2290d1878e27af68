"""How does memory that nobody has touched yet get its pages soonest?

Pages of 2 MiB are 512 times fewer and usually come faster. But a kernel whose free memory lies in
small pieces first moves other pages out of the way, and a virtual machine may first have to get
such pages back from its host: for 2 GiB, 30 s were seen. Nor do they stay fast: the first ones may
be at hand, and the next ones not. Small ones can be asked for by the range, or come one by one as
they are written to; which is faster depends on the machine, by half in both directions. So all
three ways are tried, and every range takes the one that was fastest the last time. Memory that is
to have huge pages starts where one can: else a tensor of 4 MiB has room for a single one.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import sys
import threading
import time
from contextlib import suppress
from enum import Enum
from functools import cache

import torch

from shardkeep.state.huge_pages import HUGE_NBYTES

# Smaller ranges are not worth a system call, and say nothing about a kind of pages.
_MIN_NBYTES = 4 * 2**20
# Smaller buffers share their pages with others, and are many.
_WORTH_A_CALL_NBYTES = 128 * 2**10
# What the last range took counts as much as all before it.
_NEW_SHARE = 0.5
# Every so many ranges another way is tried again, unless it took so many times as long.
_RETRY = 8
_HOPELESS = 3.0
# Since Linux 5.14; Python does not know it.
_MADV_POPULATE_WRITE = 23
_libc = ctypes.CDLL(None)


def well_placed(nbytes: int) -> torch.Tensor:
    """`nbytes` bytes, not initialised; never to be resized. Large ones start with a huge page."""
    if sys.platform != "linux" or nbytes < _MIN_NBYTES:
        return torch.empty(nbytes, dtype=torch.uint8)
    # What lies before and behind takes addresses, but no memory.
    room = mmap.mmap(-1, nbytes + HUGE_NBYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    whole = torch.frombuffer(room, dtype=torch.uint8)
    start = -whole.data_ptr() % HUGE_NBYTES
    return torch.frombuffer(room, dtype=torch.uint8, count=nbytes, offset=start)


def populate(buffer: torch.Tensor) -> None:
    """Have the pages of a buffer ready, whoever writes to it meanwhile; no byte of it changes.

    Where the kernel cannot do that, they come when they are written to.
    """
    if sys.platform != "linux" or buffer.nbytes < _WORTH_A_CALL_NBYTES:
        return
    # Not at once: who wants addresses from the kernel waits for a call that gets pages.
    for at in range(0, buffer.nbytes, HUGE_NBYTES):
        _advise(buffer[at : at + HUGE_NBYTES], _MADV_POPULATE_WRITE)


class Way(Enum):
    """How a range gets its pages: what the kernel is told of it before it is written to."""

    HUGE = (mmap.MADV_HUGEPAGE, _MADV_POPULATE_WRITE)
    SMALL = (_MADV_POPULATE_WRITE,)
    ONE_BY_ONE = ()


class FreshPages:
    """Fills memory, and finds out meanwhile which way is fastest. Threads may share it."""

    def __init__(self) -> None:
        self._untried = iter(Way)
        self._lock = threading.Lock()
        self._paces: dict[Way, float] = {}
        """Seconds for a byte, lately; the way that was taken last stands last."""
        self._count = 0

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Fill `target` from `source`; what comes from accelerators may still be on its way."""
        if not _is_fresh(target):
            _fill(target, source)
            return
        way = self.choose()
        start = time.perf_counter()
        if way is not Way.HUGE and _are_all_huge():
            # Not otherwise: threads that are getting pages would wait for each other.
            _advise(target, mmap.MADV_NOHUGEPAGE)
        for advice in way.value:
            _advise(target, advice)
        _fill(target, source)
        self._note(way, (time.perf_counter() - start) / target.nbytes)

    def choose(self) -> Way:
        """The way for the next range."""
        with self._lock:
            untried = next(self._untried, None)
            if untried is not None:
                return untried
            # While all are still being tried for the first time, the last does no harm.
            best = min(reversed(Way), key=lambda way: self._paces.get(way, math.inf))
            self._count += 1
            if self._count % _RETRY or best not in self._paces:
                return best
            # The one that was not taken for longest: it may be faster by now.
            limit = _HOPELESS * self._paces[best]
            return next(way for way, pace in self._paces.items() if pace <= limit)

    def _note(self, way: Way, pace: float) -> None:
        with self._lock:
            before = self._paces.pop(way, pace)
            self._paces[way] = _NEW_SHARE * pace + (1 - _NEW_SHARE) * before


def _fill(target: torch.Tensor, source: torch.Tensor) -> None:
    is_plain = target.is_contiguous() and source.is_contiguous() and target.dtype is source.dtype
    if is_plain and target.is_cpu and source.is_cpu and not (source.is_conj() or source.is_neg()):
        # By this thread alone: torch would have others help, of which each thread here has its own.
        ctypes.memmove(target.data_ptr(), source.data_ptr(), target.nbytes)
    else:
        target.copy_(source, non_blocking=True)


def _is_fresh(target: torch.Tensor) -> bool:
    """Whether it is memory of a process, so much that it matters, without pages as yet."""
    if not (sys.platform == "linux" and target.is_cpu and target.is_contiguous()):
        return False
    if target.nbytes < _MIN_NBYTES:
        return False
    there = ctypes.c_ubyte(1)
    # A page in the middle: what lies at the ends, the neighbours may have touched.
    page = (target.data_ptr() + target.nbytes // 2) // mmap.PAGESIZE * mmap.PAGESIZE
    _libc.mincore(ctypes.c_void_p(page), ctypes.c_size_t(1), ctypes.byref(there))
    return not there.value & 1


@cache
def _are_all_huge() -> bool:
    """Whether this system gives huge pages to whoever does not object."""
    with suppress(OSError), open("/sys/kernel/mm/transparent_hugepage/enabled") as file:
        return "[always]" in file.read()
    return False


def _advise(target: torch.Tensor, advice: int) -> None:
    """For the pages that are all its own. Where it is not taken, pages come as they always do."""
    start = -(-target.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    stop = (target.data_ptr() + target.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    _libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), advice)

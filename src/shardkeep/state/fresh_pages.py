"""How does memory that nobody has touched yet get its pages soonest?

Pages of 2 MiB are 512 times fewer and usually come faster. But a kernel whose free memory lies in
small pieces first moves other pages out of the way, and a virtual machine may first have to get
such pages back from its host: for 2 GiB, 30 s were seen. So both kinds are tried, and what is still
to come takes the faster one. Either way, pages are asked for by the range: one by one, as they are
written to, takes half as long again.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import threading
import time
from itertools import count

import torch

# Smaller ranges are not worth a system call, and say nothing about a kind of pages.
_MIN_NBYTES = 4 * 2**20
# So much of each kind is filled before one is chosen.
_TRIED_NBYTES = 24 * 2**20
# Since Linux 5.14; Python does not know it.
_MADV_POPULATE_WRITE = 23
_libc = ctypes.CDLL(None)


class FreshPages:
    """Fills memory, and finds out meanwhile which pages are faster. Threads may share it."""

    def __init__(self) -> None:
        self._numbers = count()
        self._lock = threading.Lock()
        self._nbytes = {True: 0, False: 0}
        self._seconds = {True: 0.0, False: 0.0}
        self.takes_huge: bool | None = None
        """None as long as both are tried."""

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Fill `target` from `source`; what comes from accelerators may still be on its way."""
        if not _is_fresh(target):
            target.copy_(source, non_blocking=True)
            return
        huge = self.takes_huge
        if huge is None:
            huge = next(self._numbers) % 2 == 0
        start = time.thread_time()
        _advise(target, mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
        _advise(target, _MADV_POPULATE_WRITE)
        target.copy_(source, non_blocking=True)
        self._note(huge, target.nbytes, time.thread_time() - start)

    def _note(self, huge: bool, nbytes: int, seconds: float) -> None:
        with self._lock:
            self._nbytes[huge] += nbytes
            self._seconds[huge] += seconds
            if self.takes_huge is None and min(self._nbytes.values()) >= _TRIED_NBYTES:
                pace = {kind: self._seconds[kind] / self._nbytes[kind] for kind in (True, False)}
                self.takes_huge = pace[True] <= pace[False]


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


def _advise(target: torch.Tensor, advice: int) -> None:
    """For the pages that are all its own. Where it is not taken, pages come as they always do."""
    start = -(-target.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    stop = (target.data_ptr() + target.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    _libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), advice)

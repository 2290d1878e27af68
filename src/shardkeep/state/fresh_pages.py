"""When does fresh memory come in pages of 2 MiB?

The first copy into it is then much faster: there are 512 times fewer pages. But a kernel whose free
memory lies in small pieces first moves other pages out of the way, and a virtual machine may first
have to get such pages back from its host; that was seen to take 30 s for 2 GiB. So the pace of the
copies is watched, and what is still to come takes small pages if it drops.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import time

import torch

_HUGE_PAGE_NBYTES = 2**21
# The first copy into small pages runs at several times this pace, in bytes a second.
_SLOW = 300e6
# Less says nothing.
_MIN_NBYTES = 2**20
_libc = ctypes.CDLL(None)


def want_huge_pages(buffer: torch.Tensor) -> None:
    """Have memory that nobody has touched yet come in huge pages."""
    start = -(-buffer.data_ptr() // _HUGE_PAGE_NBYTES) * _HUGE_PAGE_NBYTES
    stop = (buffer.data_ptr() + buffer.nbytes) // _HUGE_PAGE_NBYTES * _HUGE_PAGE_NBYTES
    if stop > start and sys.platform == "linux":
        # Advice: where it is not taken, pages are small.
        _libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), mmap.MADV_HUGEPAGE)


class Pace:
    """How fast several threads fill memory, and what follows from it for the rest."""

    def __init__(self) -> None:
        self.is_slow = False

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Fill `target` from `source`."""
        if self.is_slow:
            _want_small_pages(target)
        start = time.thread_time()
        target.copy_(source, non_blocking=True)
        seconds = time.thread_time() - start
        if target.nbytes >= _MIN_NBYTES and seconds * _SLOW > target.nbytes:
            self.is_slow = True


def _want_small_pages(target: torch.Tensor) -> None:
    if target.is_contiguous() and target.is_cpu and sys.platform == "linux":
        start = target.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
        nbytes = target.data_ptr() + target.nbytes - start
        # What is there already stays as it is.
        _libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(nbytes), mmap.MADV_NOHUGEPAGE)

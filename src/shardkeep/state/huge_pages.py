"""When is fresh memory asked for in pages of 2 MiB?

The first copy into it is then much faster: there are 512 times fewer pages. But where free memory
lies in small pieces, the kernel first moves other pages out of the way, for seconds on end. So only
as much is asked for as lies there in one piece anyway.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
import time
from pathlib import Path

import torch

HUGE_PAGE_NBYTES = 2**21
_PAGE_NBYTES = mmap.PAGESIZE
_FREE_PIECES = Path("/proc/buddyinfo")
_KNOWN_SECONDS = 1.0
_libc = ctypes.CDLL(None)


def want_huge_pages(buffer: torch.Tensor) -> None:
    """Have memory that nobody has touched yet come in huge pages, if they are at hand."""
    start = -(-buffer.data_ptr() // HUGE_PAGE_NBYTES) * HUGE_PAGE_NBYTES
    stop = (buffer.data_ptr() + buffer.nbytes) // HUGE_PAGE_NBYTES * HUGE_PAGE_NBYTES
    if stop > start and sys.platform == "linux" and _at_hand.claim(stop - start):
        # Advice: where it is not taken, pages are small.
        _libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), mmap.MADV_HUGEPAGE)


def free_huge_nbytes(text: str) -> int:
    """What is free in pieces of a huge page or more, by the kernel's list of free pieces.

    >>> free_huge_nbytes("Node 0, zone Normal" + " 9" * 9 + " 3 2") == (3 * 2 + 2 * 4) * 2**20
    True
    """
    total = 0
    for line in text.splitlines():
        counts = map(int, line.partition("zone")[2].split()[1:])
        for order, count in enumerate(counts):
            if _PAGE_NBYTES << order >= HUGE_PAGE_NBYTES:
                total += count * (_PAGE_NBYTES << order)
    return total


class _AtHand:
    """What this process may take; looked up anew when some time has passed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nbytes = 0
        self._until = 0.0

    def claim(self, nbytes: int) -> bool:
        """Whether there is so much more, which is then taken."""
        with self._lock:
            now = time.monotonic()
            if now > self._until:
                self._nbytes, self._until = _share(), now + _KNOWN_SECONDS
            if nbytes > self._nbytes:
                return False
            self._nbytes -= nbytes
            return True


_at_hand = _AtHand()


def _share() -> int:
    """Half of it, for all ranks of this host together: others need some, too."""
    try:
        free = free_huge_nbytes(_FREE_PIECES.read_text())
    except OSError:
        return 0
    return free // 2 // max(1, int(os.environ.get("LOCAL_WORLD_SIZE") or 1))

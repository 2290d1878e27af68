"""How does a fork of much memory take hardly any time?

It copies a table with an entry for each page: half a million for 2 GiB in pages of 4 KiB, a
thousand in pages of 2 MiB. The kernel puts small pages together when it is asked to, while the
memory is in use. Training that writes to memory which a child still shares parts them again.
"""

from __future__ import annotations

import ctypes
import errno
import sys
from collections.abc import Iterable, Iterator, Sequence

HUGE_NBYTES = 2 * 2**20
# Since Linux 6.1; Python does not know it.
_MADV_COLLAPSE = 25
# What lies between tensors that were allocated one after the other.
_BRIDGED_NBYTES = 64 * 1024
_libc = ctypes.CDLL(None, use_errno=True)

Span = tuple[int, int]
"""The first address, and the one behind the last."""


def join_pages(spans: Sequence[Span]) -> None:
    """Have this memory lie in huge pages, whoever uses it meanwhile; no byte of it changes.

    Where the kernel cannot do that, it stays as it is. Addresses that are free by now, or
    somebody else's, do no harm.
    """
    if sys.platform != "linux":
        return
    for start, stop in _bridged(spans):
        first, last = -(-start // HUGE_NBYTES) * HUGE_NBYTES, stop // HUGE_NBYTES * HUGE_NBYTES
        # Not at once: where there is no memory in pieces as large, it ends with the first.
        for at in range(first, last, HUGE_NBYTES):
            if not _join(at):
                return


def _bridged(spans: Iterable[Span]) -> Iterator[Span]:
    """In order, those that lie close together as one."""
    start = stop = 0
    for first, last in sorted(spans):
        if start < stop and first - stop <= _BRIDGED_NBYTES:
            stop = max(stop, last)
            continue
        if start < stop:
            yield start, stop
        start, stop = first, last
    if start < stop:
        yield start, stop


def _join(at: int) -> bool:
    """Whether it is worth going on; what cannot be joined now says nothing of the rest."""
    if _libc.madvise(ctypes.c_void_p(at), ctypes.c_size_t(HUGE_NBYTES), _MADV_COLLAPSE) == 0:
        return True
    return ctypes.get_errno() not in (errno.ENOMEM, errno.EBUSY)

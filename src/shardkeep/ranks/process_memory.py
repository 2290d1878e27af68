"""How does the kernel copy memory: that of another process of this host, or many small pieces?"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

MAX_PLACES = 1024
"""So many places can be read at once."""


class _IoVec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("nbytes", ctypes.c_size_t))


_libc = ctypes.CDLL(None)
if sys.platform == "linux":
    for _call in (_libc.process_vm_readv, _libc.process_vm_writev):
        _call.restype = ctypes.c_ssize_t
        _call.argtypes = (
            *(ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong),
            ctypes.c_ulong,
        )

Places = np.ndarray[Any, np.dtype[np.uintp]]
"""Rows of (address, nbytes)."""


def read_places(pid: int, places: Sequence[tuple[int, int]], target: int) -> int:
    """Copy the bytes at (address, nbytes), one place after the other, to the address `target`.

    How many came; -1 if none can be read: no such process, not allowed, or not its memory.
    """
    if sys.platform != "linux":
        return -1
    there = (_IoVec * len(places))(*places)
    here = _IoVec(target, sum(nbytes for _, nbytes in places))
    return int(_libc.process_vm_readv(pid, ctypes.byref(here), 1, there, len(places), 0))


def read_memory(pid: int, address: int, target: int, nbytes: int) -> bool:
    """Copy `nbytes` bytes from `address` to `target`; False if not all can be read."""
    if sys.platform != "linux":
        return False
    done = 0
    while done < nbytes:
        # Not `read_places`: ctypes makes a type for each length of array, which takes kilobytes.
        there, here = (_IoVec(start + done, nbytes - done) for start in (address, target))
        moved = _libc.process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
        if moved <= 0:
            return False
        done += moved
    return True


def scatter(targets: Places, sources: Places) -> bool:
    """Copy within this process what lies at `sources`, row after row, to `targets`, as one stream.

    At most `MAX_PLACES` rows each, of as many bytes; those of `sources` should be few. False if not
    all was copied: not allowed, or not this process's memory. Other threads run meanwhile.
    """
    return sys.platform == "linux" and _moves(_libc.process_vm_readv, targets, sources)


def gather(targets: Places, sources: Places) -> bool:
    """As `scatter`, for many sources; rows of `targets` should be few."""
    return sys.platform == "linux" and _moves(_libc.process_vm_writev, sources, targets)


def _moves(call: Any, many: Places, few: Places) -> bool:
    rows = many.ctypes.data, len(many), few.ctypes.data, len(few)
    return call(os.getpid(), *rows, 0) == int(many[:, 1].sum())

"""How is the memory of another process of this host read?"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence

MAX_PLACES = 1024
"""So many places can be read at once."""


class _IoVec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("nbytes", ctypes.c_size_t))


_libc = ctypes.CDLL(None)
if sys.platform == "linux":
    _libc.process_vm_readv.restype = ctypes.c_ssize_t
    _libc.process_vm_readv.argtypes = (
        *(ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong),
        ctypes.c_ulong,
    )


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

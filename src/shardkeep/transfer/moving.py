"""How are many small pieces of memory copied?

Torch-free: memory is told by its address. Whoever asks has made sure that it is there.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections import deque
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from shardkeep.plan.reads import Runs
from shardkeep.storage.buffers import MAX_BUFFERS_PER_CALL

Ints = NDArray[np.int64]
Places = NDArray[np.uintp]
"""Rows of (address, nbytes), as the kernel takes them."""

# A copy of more lets other threads run meanwhile; for less, that costs more than the copy itself.
_HELD_NBYTES = 64 * 1024
# So many pieces that are no larger on average are copied faster by one call of the kernel.
_MIN_PIECES = 8
_MAX_MEAN_NBYTES = 16 * 1024

_move_freely = ctypes.memmove
_move = ctypes.PYFUNCTYPE(None, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_size_t)(
    cast("Any", ctypes)._memmove_addr
)
_libc = ctypes.CDLL(None)
if sys.platform == "linux":
    for _call in (_libc.process_vm_readv, _libc.process_vm_writev):
        _call.restype = ctypes.c_ssize_t
        _call.argtypes = (
            *(ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong),
            ctypes.c_ulong,
        )


def copy_runs(runs: Runs, data: np.ndarray[Any, np.dtype[Any]], at: int) -> None:
    """Copy runs, all of which lie in `data`, a file's bytes from `at` on."""
    sources = runs.starts + (data.ctypes.data - at)
    copy_bytes(runs.addresses, sources, runs.stops - runs.starts)


def copy_bytes(targets: Ints, sources: Ints, sizes: Ints) -> None:
    """Copy so many bytes from each of the addresses `sources` to its twin in `targets`.

    What is copied to is copied from nowhere else.
    """
    for first in range(0, len(sizes), MAX_BUFFERS_PER_CALL):
        some = slice(first, first + MAX_BUFFERS_PER_CALL)
        if not _by_kernel(targets[some], sources[some], sizes[some]):
            _one_by_one(targets[some], sources[some], sizes[some])


def _by_kernel(targets: Ints, sources: Ints, sizes: Ints) -> bool:
    """Whether all was copied: a sandbox may forbid it. Other threads run meanwhile."""
    count, nbytes = len(sizes), int(sizes.sum())
    if sys.platform != "linux" or count < _MIN_PIECES or nbytes > _MAX_MEAN_NBYTES * count:
        return False
    there, here = _joined(targets, sizes), _joined(sources, sizes)
    call = _libc.process_vm_writev
    if len(here) < len(there):
        # What is named last is looked up first, place by place: the side with fewer of them.
        call, there, here = _libc.process_vm_readv, here, there
    rows = here.ctypes.data, len(here), there.ctypes.data, len(there)
    return call(os.getpid(), *rows, 0) == nbytes


def _joined(starts: Ints, sizes: Ints) -> Places:
    """The places, those that follow each other as one."""
    firsts = np.flatnonzero(starts[1:] != starts[:-1] + sizes[:-1]) + 1
    firsts = np.concatenate(([0], firsts))
    return np.stack((starts[firsts], np.add.reduceat(sizes, firsts)), axis=1).astype(np.uintp)


def _one_by_one(targets: Ints, sources: Ints, sizes: Ints) -> None:
    places = targets.tolist(), sources.tolist(), sizes.tolist()
    if max(places[2], default=0) <= _HELD_NBYTES:
        deque(map(_move, *places), maxlen=0)
        return
    for target, source, nbytes in zip(*places, strict=True):
        (_move if nbytes <= _HELD_NBYTES else _move_freely)(target, source, nbytes)

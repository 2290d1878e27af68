"""How are many small pieces of memory copied?

Torch-free: memory is told by its address. Whoever asks has made sure that it is there.
"""

from __future__ import annotations

import ctypes
from collections import deque
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from shardkeep.plan.reads import Runs
from shardkeep.ranks.process_memory import MAX_PLACES, Places, gather, scatter

Ints = NDArray[np.int64]

# A copy of more lets other threads run meanwhile; for less, that costs more than the copy itself.
_HELD_NBYTES = 64 * 1024
# So many pieces that are no larger on average are copied faster by one call of the kernel.
_MIN_PIECES = 8
_MAX_MEAN_NBYTES = 16 * 1024

_move_freely = ctypes.memmove
_move = ctypes.PYFUNCTYPE(None, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_size_t)(
    cast("Any", ctypes)._memmove_addr
)


def copy_runs(runs: Runs, data: np.ndarray[Any, np.dtype[Any]], at: int) -> None:
    """Copy runs, all of which lie in `data`, a file's bytes from `at` on."""
    sources = runs.starts + (data.ctypes.data - at)
    copy_bytes(runs.addresses, sources, runs.stops - runs.starts)


def copy_bytes(targets: Ints, sources: Ints, sizes: Ints) -> None:
    """Copy so many bytes from each of the addresses `sources` to its twin in `targets`.

    What is copied to is copied from nowhere else.
    """
    for first in range(0, len(sizes), MAX_PLACES):
        some = slice(first, first + MAX_PLACES)
        if not _by_kernel(targets[some], sources[some], sizes[some]):
            _one_by_one(targets[some], sources[some], sizes[some])


def _by_kernel(targets: Ints, sources: Ints, sizes: Ints) -> bool:
    """Whether all was copied."""
    if len(sizes) < _MIN_PIECES or int(sizes.sum()) > _MAX_MEAN_NBYTES * len(sizes):
        return False
    rows_to, rows_from = _joined(targets, sizes), _joined(sources, sizes)
    return (scatter if len(rows_from) <= len(rows_to) else gather)(rows_to, rows_from)


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

"""How are many small pieces of memory copied?

Torch-free: memory is told by its address. Whoever asks has made sure that it is there.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from shardkeep.plan.reads import Runs

# A copy of more lets other threads run meanwhile; for less, that costs more than the copy itself.
_HELD_NBYTES = 64 * 1024

_move_freely = ctypes.memmove
_move = ctypes.PYFUNCTYPE(None, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_size_t)(
    cast("Any", ctypes)._memmove_addr
)


def copy_runs(runs: Runs, data: np.ndarray[Any, np.dtype[Any]], at: int) -> None:
    """Copy runs, all of which lie in `data`, a file's bytes from `at` on."""
    sources = runs.starts + (data.ctypes.data - at)
    sizes = runs.stops - runs.starts
    copy_bytes(runs.addresses.tolist(), sources.tolist(), sizes.tolist())


def copy_bytes(targets: Sequence[int], sources: Sequence[int], sizes: Sequence[int]) -> None:
    """Copy so many bytes from each of the addresses `sources` to its twin in `targets`."""
    if max(sizes, default=0) <= _HELD_NBYTES:
        deque(map(_move, targets, sources, sizes), maxlen=0)
        return
    for target, source, nbytes in zip(targets, sources, sizes, strict=True):
        (_move if nbytes <= _HELD_NBYTES else _move_freely)(target, source, nbytes)

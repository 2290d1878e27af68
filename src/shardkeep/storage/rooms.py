"""Where must memory begin for the kernel to copy into it at full speed?

Data start at a page in files. Processors copy at a third of their speed to an address that lies a
few bytes further into its page than the source does, and large arrays of NumPy lie 16 bytes into
theirs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

_PAGE = 4096
# Less comes from memory that is in use already, wherever that lies.
_LARGE_NBYTES = 64 * 1024

Array = np.ndarray[Any, np.dtype[Any]]


def empty_room(shape: int | Sequence[int], dtype: Any = np.uint8) -> Array:
    """As `numpy.empty`, from the start of a page on if it is large.

    >>> empty_room((3, 65_536), np.uint16).ctypes.data % 4096
    0
    """
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    nbytes = math.prod(sizes) * np.dtype(dtype).itemsize
    if nbytes < _LARGE_NBYTES:
        return np.empty(sizes, dtype)
    memory = np.empty(nbytes + _PAGE, np.uint8)
    start = -memory.ctypes.data % _PAGE
    return memory[start : start + nbytes].view(dtype).reshape(sizes)

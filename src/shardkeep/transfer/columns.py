"""Where does every run of a read's bytes go? As columns of numbers, without a step for each.

Torch-free: memory is told by its address. The arrays that are filled must stay where they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from shardkeep.plan.reads import Copy, Part, Read, Runs, ScatterRead, SpanRead, WindowRead
from shardkeep.transfer.runs import Array

# NumPy copies shorter runs faster than anything that takes them one by one.
_MIN_RUN_NBYTES = 1024
# Columns of a box take longer to make than it takes to copy a small one.
_MIN_COPY_NBYTES = 64 * 1024


def has_columns(read: Read, targets: Sequence[Array]) -> bool:
    """Whether the read's runs are long enough to be told one by one."""
    if not isinstance(read, WindowRead):
        return True
    is_coarse = len(read.copies) * _MIN_COPY_NBYTES <= read.stop - read.start
    return is_coarse and all(
        _run_dims(copy, targets[copy.target])[1] >= _MIN_RUN_NBYTES for copy in read.copies
    )


def columns_of(read: Read, targets: Sequence[Array], start: int, stop: int) -> Iterator[Runs]:
    """The runs of a read, which has columns, that lie between two bytes of the file."""
    match read:
        case SpanRead():
            yield within(_of_parts(read.parts, targets), start, stop)
        case ScatterRead():
            yield within(read.runs, max(read.start, start), min(read.stop, stop))
        case WindowRead():
            for copy in read.copies:
                yield within(_of_copy(copy, targets[copy.target]), start, stop)
        case _:
            raise TypeError(f"{type(read).__name__} is read straight into its target")


def within(runs: Runs, start: int, stop: int) -> Runs:
    """What of the runs lies between two bytes of the file; of the first and last, perhaps a part.

    >>> runs = Runs(np.array([0, 8]), np.array([4, 12]), np.array([100, 200]), None)
    >>> cut = within(runs, 2, 9)
    >>> cut.starts.tolist(), cut.stops.tolist(), cut.addresses.tolist()
    ([2, 8], [4, 9], [102, 200])
    """
    first = int(np.searchsorted(runs.stops, start, "right"))
    last = int(np.searchsorted(runs.starts, stop, "left"))
    starts = runs.starts[first:last]
    begins = np.maximum(starts, start)
    ends = np.minimum(runs.stops[first:last], stop)
    return Runs(begins, ends, runs.addresses[first:last] + (begins - starts), runs.memory)


def _of_parts(parts: Sequence[Part], targets: Sequence[Array]) -> Runs:
    rows = [(part.start, part.stop, _address(targets[part.target]) + part.at) for part in parts]
    starts, stops, addresses = np.array(rows, np.int64).reshape(-1, 3).T
    return Runs(starts, stops, addresses, targets)


def _of_copy(copy: Copy, target: Array) -> Runs:
    place = target[(*copy.place.slices(), ...)]
    dims, nbytes = _run_dims(copy, target)
    starts = copy.start + _offsets(place.shape[:dims], copy.strides[:dims])
    addresses = _address(place) + _offsets(place.shape[:dims], place.strides[:dims])
    return Runs(starts, starts + nbytes, addresses, target)


def _run_dims(copy: Copy, target: Array) -> tuple[int, int]:
    """How many dims the runs of a box are in, and the bytes of one.

    A run lies in one piece in the file and in the target.
    """
    nbytes = target.itemsize
    shape = copy.place.shape
    for dim in reversed(range(len(shape))):
        if shape[dim] != 1 and not copy.strides[dim] == target.strides[dim] == nbytes:
            return dim + 1, nbytes
        nbytes *= shape[dim]
    return 0, nbytes


def _offsets(shape: Sequence[int], strides: Sequence[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Of each index, in order."""
    found = np.zeros(1, np.int64)
    for side, stride in zip(shape, strides, strict=True):
        steps = np.arange(side, dtype=np.int64) * stride
        found = (found[:, None] + steps).reshape(-1)
    return found


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])

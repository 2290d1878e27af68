"""Where does every run of a read's bytes go? As columns of numbers, without a step for each.

Torch-free: memory is told by its address. The arrays that are filled must stay where they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardkeep.plan.reads import Part, Runs, ScatterRead, SpanRead
from shardkeep.transfer.runs import Array


def columns_of(
    read: SpanRead | ScatterRead, targets: Sequence[Array], start: int, stop: int
) -> Runs:
    """The runs of a read that lie between two bytes of the file."""
    if isinstance(read, SpanRead):
        return within(_of_parts(read.parts, targets), start, stop)
    return within(read.runs, max(read.start, start), min(read.stop, stop))


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


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])

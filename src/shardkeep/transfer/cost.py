"""What would it cost to read these boxes? Planned in full, without reading tensor data."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from shardkeep.boxes import Box
from shardkeep.manifest import TensorRecord, itemsize
from shardkeep.plan.reads import SpanRead, WindowRead
from shardkeep.transfer.load import BIT_DTYPES, FilePlan, Want, plan_load
from shardkeep.transfer.opened import Opened
from shardkeep.transfer.read import Array


@dataclass(frozen=True, slots=True)
class ReadCost:
    """What one rank would read."""

    nbytes_wanted: int
    nbytes_read: int
    """Whole blocks, since a digest speaks for a whole block."""
    requests: int
    files: int
    scratch_nbytes: int
    """Memory beside the state, for each thread."""


def cost_of(opened: Opened, boxes: Iterable[tuple[TensorRecord, Box]], *, threads: int) -> ReadCost:
    """The cost of reading boxes of stored tensors, each to memory of its own."""
    wanted = list(boxes)
    plans = plans_of(opened, wanted, threads=threads)
    return cost_of_plans(plans, sum(_nbytes(*one) for one in wanted))


def plans_of(
    opened: Opened, boxes: Sequence[tuple[TensorRecord, Box]], *, threads: int
) -> list[FilePlan]:
    """What would be read of each file; the arrays of the plans have no memory behind them."""
    memory = _untouched(max((_nbytes(*one) for one in boxes), default=0))
    wants = [Want(record, box, _array(memory, record, box)) for record, box in boxes]
    return plan_load(opened, wants, threads=threads)


def cost_of_plans(plans: Sequence[FilePlan], nbytes_wanted: int) -> ReadCost:
    """The cost of plans that together give so many bytes."""
    windows = [r for plan in plans for r in plan.reads if isinstance(r, WindowRead | SpanRead)]
    return ReadCost(
        nbytes_wanted=nbytes_wanted,
        nbytes_read=sum(plan.nbytes for plan in plans),
        requests=sum(len(plan.reads) for plan in plans),
        files=len(plans),
        scratch_nbytes=max((window.stop - window.start for window in windows), default=0),
    )


def _nbytes(record: TensorRecord, box: Box) -> int:
    return box.numel * itemsize(record.dtype)


def _untouched(nbytes: int) -> mmap.mmap:
    """Addresses without memory behind them: a plan looks at shapes and strides alone.

    What cannot be written to is not counted as memory, whatever its size.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return mmap.mmap(-1, max(1, nbytes), flags=flags, prot=mmap.PROT_READ)


def _array(memory: mmap.mmap, record: TensorRecord, box: Box) -> Array:
    return np.ndarray(box.shape, BIT_DTYPES[itemsize(record.dtype)], buffer=memory)

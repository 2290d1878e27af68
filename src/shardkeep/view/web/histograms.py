"""How are values spread, and where are those that are no numbers?"""

# NumPy leaves views and reductions untyped.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import numpy as np

from shardkeep.boxes import Box
from shardkeep.manifest import TensorRecord
from shardkeep.transfer.opened import Opened
from shardkeep.transfer.progress import Meter
from shardkeep.transfer.read import Array
from shardkeep.view.pieces import PieceReader, run_all
from shardkeep.view.values import Stats, as_numbers

BINS = 64
_MOST_CELLS = 20

T = TypeVar("T")
Cells = list[tuple[int, ...]]
Odd = list[tuple[Box, Stats, Cells]]
"""Boxes with values that are not finite, and the first few of these cells."""


def as_floats(bits: Array, dtype: str) -> Array:
    """Bits as numbers of float64, flat; of complex ones their size."""
    numbers = as_numbers(bits.reshape(-1), dtype, "one")
    return (np.abs(numbers) if np.iscomplexobj(numbers) else numbers).astype(np.float64)


def over_boxes(
    opened: Opened,
    record: TensorRecord,
    boxes: Sequence[Box],
    act: Callable[[Box, Array], T],
) -> list[T]:
    """What `act` says of the bits of each box, in order; read and checked on all cores."""
    reader = PieceReader(opened)

    def one(box: Box, meter: Meter) -> T:
        (bits,) = reader.read([(record, box)])
        return act(box, bits)

    return run_all([partial(one, box) for box in boxes], 0, "reading", show=False)


def stats_of(opened: Opened, record: TensorRecord, boxes: Sequence[Box]) -> tuple[Stats, Odd]:
    """Statistics of the boxes together, and where values are not finite."""

    def act(box: Box, bits: Array) -> tuple[Box, Stats, Cells]:
        stats = Stats()
        stats.add(bits, record.dtype)
        return box, stats, _odd_cells(box, bits, record.dtype) if _is_odd(stats) else []

    whole = Stats()
    odd: Odd = []
    for found in over_boxes(opened, record, boxes, act):
        whole.join(found[1])
        if _is_odd(found[1]):
            odd.append(found)
    return whole, odd


def _is_odd(stats: Stats) -> bool:
    return bool(stats.nans or stats.infs)


def _odd_cells(box: Box, bits: Array, dtype: str) -> Cells:
    flat = np.flatnonzero(~np.isfinite(as_floats(bits, dtype)))[:_MOST_CELLS]
    places = np.unravel_index(flat, box.shape)
    return [
        tuple(int(at) + start for at, start in zip(cell, box.start, strict=True))
        for cell in zip(*places, strict=True)
    ]


def histogram_of(
    opened: Opened, record: TensorRecord, boxes: Sequence[Box], least: float, most: float
) -> list[int]:
    """How many of the finite values lie in each of `BINS` equal parts from `least` to `most`."""
    if not least <= most:
        return [0] * BINS

    def act(box: Box, bits: Array) -> Array:
        numbers = as_floats(bits, record.dtype)
        return counts(numbers[np.isfinite(numbers)], least, most)

    found = over_boxes(opened, record, boxes, act)
    return np.sum(found, axis=0).tolist() if found else [0] * BINS


def counts(numbers: Array, least: float, most: float) -> Array:
    """The numbers of each bin; scaled first, since the width of the range may overflow."""
    half = most / 2 - least / 2
    if not half:
        found = np.zeros(BINS, np.int64)
        found[BINS // 2] = numbers.size
        return found
    at = (numbers / 2 - least / 2) / half * BINS
    return np.bincount(np.clip(at, 0, BINS - 1).astype(np.int64), minlength=BINS)

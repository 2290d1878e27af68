"""What do a stored tensor's values look like, and how do two tensors differ? Torch-free.

Read in pieces of bounded size, whatever the tensor's size, each checked against its digest.
"""

# NumPy leaves views and reductions untyped.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shardkeep.boxes import Box
from shardkeep.manifest import TensorRecord, itemsize
from shardkeep.plan import cut
from shardkeep.transfer.lazy import NUMPY_DTYPES, Checkpoint
from shardkeep.view.small_floats import FLOAT8_VALUES

_PIECE_NBYTES = 8 * 2**20
Array = np.ndarray[Any, np.dtype[Any]]


def pieces(record: TensorRecord) -> list[Box]:
    """Boxes that tile the tensor, each small enough to be held in memory."""
    if 0 in record.shape:
        return []
    return list(cut(record.shape, max(1, _PIECE_NBYTES // itemsize(record.dtype))))


def as_numbers(bits: Array, dtype: str) -> Array:
    """Stored bits as numbers that NumPy can compute with."""
    if dtype == "BF16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    if dtype in FLOAT8_VALUES:
        return FLOAT8_VALUES[dtype]()[bits]
    return bits.view(NUMPY_DTYPES[dtype])


def _reals(numbers: Array) -> Array:
    """Real numbers, row by row; a complex one counts as its absolute value."""
    return np.abs(numbers) if np.iscomplexobj(numbers) else numbers


@dataclass(slots=True)
class Stats:
    """Minimum, maximum, mean and deviation of the finite values, and how many are not."""

    count: int = 0
    nans: int = 0
    infs: int = 0
    least: float = math.inf
    most: float = -math.inf
    total: float = 0.0
    squares: float = 0.0
    """Sum of squared distances from the mean so far."""

    @property
    def finite(self) -> int:
        return self.count - self.nans - self.infs

    @property
    def mean(self) -> float:
        return self.total / self.finite if self.finite else math.nan

    @property
    def deviation(self) -> float:
        return math.sqrt(self.squares / self.finite) if self.finite else math.nan

    def add(self, numbers: Array) -> None:
        """Take in further values."""
        reals = np.asarray(_reals(numbers), np.float64).reshape(-1)
        finite = np.isfinite(reals)
        self.count += reals.size
        self.nans += int(np.isnan(reals).sum())
        self.infs += int(np.isinf(reals).sum())
        known = reals if finite.all() else reals[finite]
        if known.size:
            self.least = min(self.least, float(known.min()))
            self.most = max(self.most, float(known.max()))
            self._join(known.size, float(known.sum()), float(known.var() * known.size))

    def _join(self, count: int, total: float, squares: float) -> None:
        before = self.finite - count
        if before:
            apart = total / count - self.total / before
            squares += apart * apart * before * count / (before + count)
        self.total += total
        self.squares += squares


def stats_of(checkpoint: Checkpoint, key: str) -> Stats:
    """The statistics of a stored tensor."""
    record = checkpoint.manifest.tensor(key)
    found = Stats()
    for box in pieces(record):
        found.add(as_numbers(checkpoint.read(record, box), record.dtype))
    return found


@dataclass(slots=True)
class Change:
    """How far two tensors of one shape are apart."""

    key: str
    count: int = 0
    changed: int = 0
    most: float = 0.0
    """The largest absolute difference; inf where one of the two is not finite."""
    most_relative: float = 0.0
    kinds: list[str] = field(default_factory=list[str])

    @property
    def fraction(self) -> float:
        return self.changed / self.count if self.count else 0.0

    def add(self, one: Array, other: Array) -> None:
        """Take in further pairs of values."""
        self.count += one.size
        same = (one == other) | ((one != one) & (other != other))
        if same.all():
            return
        self.changed += int(same.size - same.sum())
        a, b = one[~same], other[~same]
        wide = np.complex128 if np.iscomplexobj(a) or np.iscomplexobj(b) else np.float64
        with np.errstate(all="ignore"):
            apart = np.abs(np.asarray(a, wide) - np.asarray(b, wide))
            relative = apart / np.maximum(np.abs(a), np.abs(b))
        apart[np.isnan(apart)] = np.inf
        self.most = max(self.most, float(apart.max()))
        self.most_relative = max(self.most_relative, float(np.nanmax(relative, initial=0.0)))


def change_of(a: Checkpoint, b: Checkpoint, key: str) -> Change:
    """How far a tensor that both have, of one shape, is apart."""
    one, other = a.manifest.tensor(key), b.manifest.tensor(key)
    found = Change(key)
    for box in _common_pieces(one, other):
        found.add(
            as_numbers(a.read(one, box), one.dtype), as_numbers(b.read(other, box), other.dtype)
        )
    return found


def _common_pieces(one: TensorRecord, other: TensorRecord) -> Iterator[Box]:
    larger = max((one, other), key=lambda record: itemsize(record.dtype))
    yield from pieces(larger)

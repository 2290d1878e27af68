"""What do values look like, and how do two arrays of them differ? Torch-free.

A block at a time, small enough for the cache, in the values' own dtype where that is exact.
"""

# NumPy leaves views and reductions untyped.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np

from shardkeep.transfer.lazy import NUMPY_DTYPES
from shardkeep.transfer.read import Array
from shardkeep.view.small_floats import FLOAT8_VALUES

_BLOCK = 2**17


def as_numbers(bits: Array, dtype: str) -> Array:
    """Stored bits as numbers that NumPy can compute with."""
    if dtype == "BF16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    if dtype in FLOAT8_VALUES:
        return FLOAT8_VALUES[dtype]()[bits]
    numbers = bits.view(NUMPY_DTYPES[dtype])
    return numbers.astype(np.float32) if dtype == "F16" else numbers


class Stats(msgspec.Struct):
    """Minimum, maximum, mean and deviation of the finite values, and how many are not."""

    count: int = 0
    nans: int = 0
    infs: int = 0
    least: float = math.inf
    most: float = -math.inf
    mean_so_far: float = 0.0
    squares: float = 0.0
    """Sum of squared distances from the mean."""

    @property
    def finite(self) -> int:
        return self.count - self.nans - self.infs

    @property
    def mean(self) -> float:
        return self.mean_so_far if self.finite else math.nan

    @property
    def deviation(self) -> float:
        return math.sqrt(self.squares / self.finite) if self.finite else math.nan

    def add(self, bits: Array, dtype: str) -> None:
        """Take in further values."""
        flat = bits.reshape(-1)
        for at in range(0, flat.size, _BLOCK):
            numbers = as_numbers(flat[at : at + _BLOCK], dtype)
            self.join(_block_stats(np.abs(numbers) if np.iscomplexobj(numbers) else numbers))

    def join(self, other: Stats) -> None:
        """Take in what others have seen."""
        before, count = self.finite, other.finite
        self.count += other.count
        self.nans += other.nans
        self.infs += other.infs
        self.least, self.most = min(self.least, other.least), max(self.most, other.most)
        if count:
            apart, total = other.mean_so_far - self.mean_so_far, before + count
            self.squares += other.squares + apart * apart * before * count / total
            self.mean_so_far += apart * count / total


def _block_stats(numbers: Array) -> Stats:
    least, most = float(numbers.min()), float(numbers.max())
    if math.isfinite(least) and math.isfinite(most):
        return _finite_stats(numbers, least, most)
    finite = np.isfinite(numbers)
    nans = int(np.count_nonzero(np.isnan(numbers)))
    known = numbers[finite]
    found = _finite_stats(known, float(known.min()), float(known.max())) if known.size else Stats()
    found.count, found.nans = numbers.size, nans
    found.infs = numbers.size - known.size - nans
    return found


def _finite_stats(numbers: Array, least: float, most: float) -> Stats:
    # Around a value within the range: digits that all have in common are not lost.
    wide = numbers.astype(np.float64)
    pivot = float(wide[0])
    wide -= pivot
    shift = float(np.add.reduce(wide)) / wide.size
    np.multiply(wide, wide, out=wide)
    squares = max(0.0, float(np.add.reduce(wide)) - shift * shift * wide.size)
    return Stats(numbers.size, 0, 0, least, most, pivot + shift, squares)


class Change(msgspec.Struct):
    """How far two tensors of one shape are apart."""

    key: str
    count: int = 0
    changed: int = 0
    most: float = 0.0
    """The largest absolute difference; inf where one of the two is not finite."""
    most_relative: float = 0.0

    @property
    def fraction(self) -> float:
        return self.changed / self.count if self.count else 0.0

    def add(self, one: Array, other: Array, dtypes: tuple[str, str]) -> None:
        """Take in further pairs of values, given as bits."""
        a, b = one.reshape(-1), other.reshape(-1)
        self.count += a.size
        for at in range(0, a.size, _BLOCK):
            x, y = a[at : at + _BLOCK], b[at : at + _BLOCK]
            if dtypes[0] != dtypes[1] or not np.array_equal(_words(x), _words(y)):
                self._compare(as_numbers(x, dtypes[0]), as_numbers(y, dtypes[1]))

    def join(self, other: Change) -> None:
        """Take in what others have seen."""
        self.count += other.count
        self.changed += other.changed
        self.most = max(self.most, other.most)
        self.most_relative = max(self.most_relative, other.most_relative)

    def _compare(self, x: Array, y: Array) -> None:
        differs = x != y
        changed = int(np.count_nonzero(differs))
        if not changed:
            return
        with np.errstate(all="ignore"):
            if _is_plain(x, y):
                most, relative = _apart(x, y)
                if math.isfinite(most):
                    self._note(changed, most, relative)
                    return
        self._compare_slowly(x, y, differs)

    def _compare_slowly(self, x: Array, y: Array, differs: Array) -> None:
        """Where something is not finite, or is an integer beyond what floats hold."""
        differs &= ~((x != x) & (y != y))
        changed = int(np.count_nonzero(differs))
        if not changed:
            return
        kind = np.complex128 if np.iscomplexobj(x) or np.iscomplexobj(y) else np.float64
        with np.errstate(all="ignore"):
            most, relative = _apart(x[differs].astype(kind), y[differs].astype(kind))
        self._note(changed, math.inf if math.isnan(most) else most, relative)

    def _note(self, changed: int, most: float, relative: float) -> None:
        self.changed += changed
        self.most = max(self.most, most)
        self.most_relative = max(self.most_relative, relative)


def _words(bits: Array) -> Array:
    """The same bytes as the widest words that they fill: compared fastest, whatever they mean."""
    return bits.view(np.uint64) if bits.nbytes % 8 == 0 else bits.view(np.uint8)


def _is_plain(x: Array, y: Array) -> bool:
    return x.dtype == y.dtype and x.dtype.name in ("float32", "float64")


def _apart(x: Array, y: Array) -> tuple[float, float]:
    """The largest absolute and relative difference; nan for what has no difference."""
    apart: Any = np.abs(x - y)
    most = float(apart.max())
    scale = np.maximum(np.abs(x), np.abs(y))
    apart /= scale
    return most, float(np.fmax.reduce(apart, initial=0.0))

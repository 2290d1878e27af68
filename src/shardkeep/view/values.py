"""What do values look like, and how do two arrays of them differ? Torch-free.

A block at a time, small enough for the cache and large enough that Python does not show, in the
values' own dtype where that is exact.
"""

# NumPy leaves views and reductions untyped.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import math
import threading

import msgspec
import numpy as np

from shardkeep.transfer.lazy import NUMPY_DTYPES
from shardkeep.transfer.read import Array
from shardkeep.view.small_floats import FLOAT8_VALUES

_BLOCK = 2**17
_FEW = 64
# So many float32 are added up as they are; sums of sums are of float64.
_ROW = 256
_ONES = np.ones(_ROW, np.float32)
# Squares of float32 between these neither overflow nor vanish.
_SMALL, _LARGE = 1e-12, 1e15


class _Scratch(threading.local):
    """Memory that each thread uses again: fresh pages for each block cost more than the block."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Array] = {}

    def get(self, use: str, dtype: str, size: int) -> Array:
        """An array for one use at a time."""
        found = self._known.get((use, dtype))
        if found is None or found.size < size:
            found = self._known[use, dtype] = np.empty(max(size, _BLOCK), dtype)
        return found[:size]


_scratch = _Scratch()


def as_numbers(bits: Array, dtype: str, use: str) -> Array:
    """Stored bits as numbers that NumPy can compute with, good until the next for this use."""
    if dtype == "BF16":
        shifted = _scratch.get(use, "uint32", bits.size)
        np.copyto(shifted, bits)
        np.left_shift(shifted, 16, out=shifted)
        return shifted.view(np.float32)
    if dtype in FLOAT8_VALUES:
        looked_up = _scratch.get(use, "float32", bits.size)
        return np.take(FLOAT8_VALUES[dtype](), bits, out=looked_up, mode="clip")
    numbers = bits.view(NUMPY_DTYPES[dtype])
    if dtype != "F16":
        return numbers
    wide = _scratch.get(use, "float32", bits.size)
    np.copyto(wide, numbers)
    return wide


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
            numbers = as_numbers(flat[at : at + _BLOCK], dtype, "one")
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
    pivot = float(numbers[0])
    reach = max(most - pivot, pivot - least)
    if numbers.dtype == np.float32 and numbers.size % _ROW == 0 and _SMALL < reach < _LARGE:
        total, squares = _row_sums(numbers, pivot)
    else:
        total, squares = _wide_sums(numbers, pivot)
    shift = total / numbers.size
    squares = max(0.0, squares - shift * shift * numbers.size)
    return Stats(numbers.size, 0, 0, least, most, pivot + shift, squares)


def _row_sums(numbers: Array, pivot: float) -> tuple[float, float]:
    """The sum of the distances from the pivot, and of their squares; faster than `_wide_sums`."""
    apart = _scratch.get("apart", "float32", numbers.size)
    np.subtract(numbers, np.float32(pivot), out=apart)
    rows = apart.reshape(-1, _ROW)
    total = np.vecdot(rows, _ONES).sum(dtype=np.float64)
    squares = np.vecdot(rows, rows).sum(dtype=np.float64)
    return float(total), float(squares)


def _wide_sums(numbers: Array, pivot: float) -> tuple[float, float]:
    wide = _scratch.get("wide", "float64", numbers.size)
    np.copyto(wide, numbers)
    wide -= pivot
    return float(wide.sum()), float(np.einsum("i,i->", wide, wide))


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
            if dtypes[0] != dtypes[1] or not _are_equal(_words(x), _words(y)):
                self._compare(as_numbers(x, dtypes[0], "one"), as_numbers(y, dtypes[1], "two"))

    def join(self, other: Change) -> None:
        """Take in what others have seen."""
        self.count += other.count
        self.changed += other.changed
        self.most = max(self.most, other.most)
        self.most_relative = max(self.most_relative, other.most_relative)

    def _compare(self, x: Array, y: Array) -> None:
        differs = np.not_equal(x, y, out=_scratch.get("differs", "bool", x.size))
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


def _are_equal(x: Array, y: Array) -> bool:
    # Where anything changed, mostly all did: then the first few tell.
    return np.array_equal(x[:_FEW], y[:_FEW]) and np.array_equal(x, y)


def _words(bits: Array) -> Array:
    """The same bytes as the widest words that they fill: compared fastest, whatever they mean."""
    return bits.view(np.uint64) if bits.nbytes % 8 == 0 else bits.view(np.uint8)


def _is_plain(x: Array, y: Array) -> bool:
    return x.dtype == y.dtype and x.dtype.name in ("float32", "float64")


def _apart(x: Array, y: Array) -> tuple[float, float]:
    """The largest absolute and relative difference; nan for what has no difference."""
    kind = "float32" if x.dtype.name == "float32" else "float64"
    apart = _scratch.get("apart", kind, x.size)
    scale = _scratch.get("scale", kind, x.size)
    other = _scratch.get("other", kind, x.size)
    np.abs(np.subtract(x, y, out=None if np.iscomplexobj(x) else apart), out=apart)
    most = float(apart.max())
    np.maximum(np.abs(x, out=scale), np.abs(y, out=other), out=scale)
    np.divide(apart, scale, out=apart)
    return most, float(np.fmax.reduce(apart, initial=0.0))

"""How far apart are two values or two tensors of the same shape and dtype?

Numbers are compared as numbers: nan equals nan, and -0.0 equals 0.0. A nan opposite a number
counts as an infinite difference.
"""

import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

# Bounds the memory of a comparison: a few arrays of this many numbers.
_CHUNK_NUMEL = 1 << 20

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

_NUMPY_DTYPES = frozenset(
    getattr(torch, name)
    for name in (
        *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
)

_TORCH_COMPARES = frozenset((torch.float32, torch.bfloat16, torch.float64, torch.int64))


@dataclass(frozen=True, slots=True)
class Distance:
    """How many elements differ, and by how much at most: exact for integers, None if unknown."""

    count: int
    max_abs: float | None


def value_distance(a: Any, b: Any) -> Distance | None:
    """How two values of the same type differ, or None if they are equal."""
    if isinstance(a, float | complex | np.number | np.ndarray):
        return _numpy_distance(np.asarray(a), np.asarray(b))
    if _equal_values(a, b):
        return None
    # Python's integers have no bound, and bool is one of them.
    return Distance(1, abs(a - b) if isinstance(a, int) else None)


def _numpy_distance(a: Array, b: Array) -> Distance | None:
    alike = a.shape == b.shape and a.dtype == b.dtype
    if alike and a.dtype.kind in "biufc":
        return array_distance(a.reshape(-1), b.reshape(-1))
    return None if alike and _equal_values(a.tolist(), b.tolist()) else Distance(1, None)


def _equal_values(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if isinstance(a, io.BytesIO):
        return a.getvalue() == b.getvalue()
    try:
        return bool(a == b)
    except Exception:
        # A type whose == fails or has no yes or no: only the same object is known to be equal.
        return False


def tensors_distance(
    pairs: Sequence[tuple[torch.Tensor, torch.Tensor]],
) -> Distance | None:
    """How tensors differ from their opposites of the same shape and dtype, or None."""
    found = [
        distance
        for a, b in pairs
        if not _quickly_equal(a, b)
        for chunk_a, chunk_b in zip(_chunks(a), _chunks(b), strict=True)
        if (distance := array_distance(chunk_a, chunk_b))
    ]
    if not found:
        return None
    largest = max(distance.max_abs or 0 for distance in found)
    return Distance(sum(distance.count for distance in found), largest)


def _quickly_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether torch says so without help: most tensors that are equal have no nan in them."""
    simple = a.layout is torch.strided and a.dtype in _TORCH_COMPARES
    return simple and a.device == b.device and torch.equal(a, b)


def array_distance(a: Array, b: Array) -> Distance | None:
    """How two arrays of numbers of the same shape and dtype differ, or None if they are equal."""
    differs = _differs(a, b)
    count = int(np.count_nonzero(differs))
    return Distance(count, _max_abs(a[differs], b[differs])) if count else None


def _differs(a: Array, b: Array) -> Array:
    if a.dtype.kind == "c":
        return _differs(np.real(a), np.real(b)) | _differs(np.imag(a), np.imag(b))
    if a.dtype.kind == "f":
        return (a != b) & ~(np.isnan(a) & np.isnan(b))
    return a != b


def _max_abs(a: Array, b: Array) -> float:
    if a.dtype.kind == "b":
        return 1
    if a.dtype.kind in "iu":
        # Exact for all integers: the difference wraps round into the unsigned type.
        unsigned = np.dtype(f"u{a.dtype.itemsize}")
        with np.errstate(over="ignore"):
            return int((np.maximum(a, b) - np.minimum(a, b)).view(unsigned).max())
    wide = np.result_type(a.dtype, np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        largest = float(np.abs(a.astype(wide) - b.astype(wide)).max())
    return math.inf if math.isnan(largest) else largest


def _chunks(tensor: torch.Tensor) -> Iterator[Array]:
    """The elements in row-major order, as arrays of a bounded size."""
    flat = (tensor if tensor.layout is torch.strided else tensor.to_dense()).reshape(-1)
    for start in range(0, flat.numel(), _CHUNK_NUMEL):
        yield _to_numpy(flat[start : start + _CHUNK_NUMEL])


def _to_numpy(tensor: torch.Tensor) -> Array:
    if tensor.dtype not in _NUMPY_DTYPES:
        tensor = _widen(tensor)
    return tensor.cpu().resolve_conj().resolve_neg().numpy()


def _widen(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers in a dtype that NumPy has; opaque bits as the bytes that they are."""
    if tensor.dtype.is_complex:
        return tensor.to(torch.complex64)
    if not tensor.dtype.is_floating_point or tensor.dtype == torch.float4_e2m1fn_x2:
        return tensor.contiguous().view(torch.uint8)
    return tensor.to(torch.float32)

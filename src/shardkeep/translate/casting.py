"""How do stored floats become floats of another size? Torch-free, with torch's own results.

Wider ones go by float32 to bf16 and fp16, as `Tensor.to` does: to the nearest, ties to even. NaN
stays NaN, and what is too large becomes infinite.
"""

# NumPy leaves views and comparisons untyped.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import numpy as np

from shardkeep.errors import InvalidError
from shardkeep.transfer.read import Array

_NAMES = {
    "BF16": ("bf16", "bfloat16"),
    "F16": ("fp16", "f16", "float16"),
    "F32": ("fp32", "f32", "float32"),
    "F64": ("fp64", "f64", "float64"),
}
_BY_NAME = {name: dtype for dtype, names in _NAMES.items() for name in names}
_NUMPY: dict[str, Any] = {"F16": np.float16, "F32": np.float32, "F64": np.float64}
_FLOATS = frozenset(("BF16", *_NUMPY))
_BF16_NAN = np.uint16(0x7FC0)


def float_dtype(name: str) -> str:
    """The format's name of the dtype that a person means.

    >>> float_dtype("bfloat16"), float_dtype("FP16")
    ('BF16', 'F16')
    """
    found = _BY_NAME.get(name.lower().removeprefix("torch."))
    if found is None:
        known = ", ".join(names[0] for names in _NAMES.values())
        raise InvalidError(f"tensors are not cast to {name!r}; take one of {known}")
    return found


def is_float(dtype: str) -> bool:
    """Whether such tensors are cast; integers, bools and complex ones stay as they are."""
    return dtype in _FLOATS or dtype.startswith("F8_")


def cast_bits(bits: Array, dtype: str, to: str, out: Array) -> bool:
    """Fill `out` with the floats in `bits` as another dtype; True if a finite one grew infinite.

    Both hold items of their dtype's size that mean nothing by themselves.
    """
    # Of 0-dim arrays NumPy makes scalars, which cannot be filled.
    numbers, out = _numbers(bits.reshape(-1), dtype), out.reshape(-1)
    with np.errstate(all="ignore"):
        if to == "BF16":
            single = np.ascontiguousarray(numbers, np.float32)
            rounded = _to_bf16(single)
            np.copyto(out, rounded)
            return bool(np.any(_is_infinite_bf16(rounded) & np.isfinite(numbers)))
        if to == "F16":
            # As torch does: what lies between two halves is rounded once as a float32.
            numbers = numbers.astype(np.float32, copy=False)
        made = numbers.astype(_NUMPY[to], copy=False)
        np.copyto(out, made.view(out.dtype))
        return bool(np.any(np.isinf(made) & np.isfinite(numbers)))


def _numbers(bits: Array, dtype: str) -> Array:
    if dtype in _NUMPY:
        return bits.view(_NUMPY[dtype])
    if dtype == "BF16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    # NumPy has no floats of eight bits.
    import torch

    from shardkeep.state.dtypes import TORCH_DTYPES

    return torch.from_numpy(bits).view(TORCH_DTYPES[dtype]).to(torch.float32).numpy()


def _to_bf16(numbers: Array) -> Array:
    words = numbers.view(np.uint32)
    half = (words >> np.uint32(16)) & np.uint32(1)
    half += np.uint32(0x7FFF)
    half += words
    half >>= np.uint32(16)
    made = half.astype(np.uint16)
    made[np.isnan(numbers)] = _BF16_NAN
    return made


def _is_infinite_bf16(bits: Array) -> Array:
    return (bits & np.uint16(0x7FFF)) == np.uint16(0x7F80)

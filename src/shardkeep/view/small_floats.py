"""What number is each pattern of eight bits? NumPy has no such types."""

# NumPy leaves what it computes of mixed types untyped.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

Table = np.ndarray[Any, np.dtype[np.float32]]


def _table(exponent_bits: int, bias: int, *, kind: str) -> Table:
    """`kind`: ieee (has infinities), fn (all ones is nan), fnuz (minus zero is nan)."""
    bits = np.arange(256)
    mantissa_bits = 7 - exponent_bits
    sign = np.where(bits >= 128, -1.0, 1.0)
    exponent = (bits >> mantissa_bits) & (2**exponent_bits - 1)
    mantissa = (bits & (2**mantissa_bits - 1)) / 2**mantissa_bits
    normal = np.exp2(exponent - bias) * (1 + mantissa)
    small = np.exp2(1 - bias) * mantissa
    values = sign * np.where(exponent > 0, normal, small)
    top = exponent == 2**exponent_bits - 1
    if kind == "ieee":
        values = np.where(top, np.where(mantissa == 0, sign * np.inf, np.nan), values)
    elif kind == "fn":
        values[[0x7F, 0xFF]] = np.nan
    else:
        values[0x80] = np.nan
    return values.astype(np.float32)


def _powers() -> Table:
    """Exponents alone: from 2**-127 on, the last one nan."""
    values = np.exp2(np.arange(256.0) - 127)
    values[255] = np.nan
    return values.astype(np.float32)


FLOAT8_VALUES: dict[str, Callable[[], Table]] = {
    "F8_E4M3": cache(lambda: _table(4, 7, kind="fn")),
    "F8_E5M2": cache(lambda: _table(5, 15, kind="ieee")),
    "F8_E4M3FNUZ": cache(lambda: _table(4, 8, kind="fnuz")),
    "F8_E5M2FNUZ": cache(lambda: _table(5, 16, kind="fnuz")),
    "F8_E8M0FNU": cache(_powers),
}
"""By dtype: the number that each of the 256 patterns means."""

"""Which dtypes are there, and how do they lie in a data file?

The torch side maps these names to torch's own. What safetensors has no name for is stored as
bytes or as pairs of numbers, so that any reader of safetensors gets at the data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from shardkeep.errors import InvalidError
from shardkeep.manifest.limits import MAX_INT, MAX_NDIM
from shardkeep.manifest.plain_json import shown


@dataclass(frozen=True, slots=True)
class DtypeRecord:
    """The size of an item, and the safetensors dtype that stores it.

    `is_pair`: an item is two stored numbers, in a further dim at the end.
    """

    itemsize: int
    stored_as: str
    is_pair: bool = False


STORED_ITEMSIZES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "U16": 2,
    "I16": 2,
    "U32": 4,
    "I32": 4,
    "U64": 8,
    "I64": 8,
    "F16": 2,
    "BF16": 2,
    "F32": 4,
    "F64": 8,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
}
"""The dtypes of safetensors entries."""

DTYPES = {
    **{name: DtypeRecord(size, name) for name, size in STORED_ITEMSIZES.items()},
    "F8_E4M3FNUZ": DtypeRecord(1, "U8"),
    "F8_E5M2FNUZ": DtypeRecord(1, "U8"),
    "F8_E8M0FNU": DtypeRecord(1, "U8"),
    "C64": DtypeRecord(8, "F32", is_pair=True),
    "C128": DtypeRecord(16, "F64", is_pair=True),
}
"""The dtypes of tensors."""


def itemsize(dtype: str) -> int:
    """Bytes of one item.

    >>> itemsize("BF16"), itemsize("C128")
    (2, 16)
    """
    return _record(dtype).itemsize


def storage_entry(dtype: str, shape: Sequence[int]) -> tuple[str, tuple[int, ...]]:
    """The dtype and shape under which safetensors stores such a tensor.

    >>> storage_entry("BF16", (2, 3)), storage_entry("C64", (2, 3)), storage_entry("F8_E8M0FNU", ())
    (('BF16', (2, 3)), ('F32', (2, 3, 2)), ('U8', ()))
    """
    record = _record(dtype)
    return record.stored_as, (*shape, 2) if record.is_pair else tuple(shape)


def tensor_nbytes(dtype: str, shape: Sequence[int]) -> int:
    """Bytes of a tensor; refuses shapes that no int64 can count.

    Empty dims do not hide the others: an array library multiplies them before it looks.
    """
    size = itemsize(dtype)
    if len(shape) > MAX_NDIM:
        raise InvalidError(f"a shape of {len(shape)} dims; expected at most {MAX_NDIM}")
    if not all(type(n) is int and 0 <= n <= MAX_INT for n in shape):
        raise InvalidError(f"shape {_short(shape)} has a size that is not from 0 to 2**63 - 1")
    if math.prod([n or 1 for n in shape]) * size > MAX_INT:
        raise InvalidError(f"shape {_short(shape)} of {dtype} takes more than 2**63 - 1 bytes")
    return math.prod(shape) * size


def _short(shape: Sequence[int]) -> str:
    return f"[{', '.join(map(shown, shape))}]"


def _record(dtype: str) -> DtypeRecord:
    if dtype not in DTYPES:
        raise InvalidError(f"unknown dtype {shown(dtype)}; known are {', '.join(DTYPES)}")
    return DTYPES[dtype]

"""Where in its file does each chunk lie?

Entries follow each other without holes, as safetensors demands, each at a multiple of its item
size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast

import msgspec
from msgspec import UNSET

from shardkeep.errors import CorruptError, InvalidError
from shardkeep.manifest.dtypes import STORED_ITEMSIZES
from shardkeep.manifest.limits import MAX_INT, MAX_NDIM
from shardkeep.manifest.plain_json import shown


# Made by the 10,000s: a Struct is several times as fast as a dataclass.
class StoredEntry(msgspec.Struct, frozen=True, gc=False):
    """A chunk in a data file: dtype and shape as stored, and its bytes, counted from the file's."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


class WireEntry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """A value in the header: `__metadata__` has the first field, chunks have the others."""

    shardkeep: str | msgspec.UnsetType = msgspec.UNSET
    dtype: str | msgspec.UnsetType = msgspec.UNSET
    shape: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET
    data_offsets: tuple[int, int] | msgspec.UnsetType = msgspec.UNSET


def stored_entries(
    wire: Mapping[str, WireEntry], header_nbytes: int, file_nbytes: int
) -> dict[str, StoredEntry]:
    """The entries with places in the file; they must fill all of it behind the header."""
    entries: dict[str, StoredEntry] = {}
    stop = header_nbytes
    sizes: dict[object, tuple[int, int]] = {}
    """By dtype and shape, which many share: the bytes of such an entry, and of one item."""
    for name, found in wire.items():
        dtype, shape, offsets = found.dtype, found.shape, found.data_offsets
        alike = dtype, shape
        if offsets is UNSET or alike not in sizes or found.shardkeep is not UNSET:
            offsets = _checked(name, found)
            sizes[alike] = offsets[1] - offsets[0], STORED_ITEMSIZES[cast("str", dtype)]
        start, end = header_nbytes + offsets[0], header_nbytes + offsets[1]
        nbytes, itemsize = sizes[alike]
        if end - start != nbytes or start % itemsize or not header_nbytes <= start <= MAX_INT:
            _checked(name, found)
        if start != stop:
            raise CorruptError(
                f"entry {shown(name)} starts at byte {shown(start)}, but the one before it "
                f"ends at {stop}: entries leave no holes and do not overlap"
            )
        stop = end
        entries[name] = StoredEntry(cast("str", dtype), cast("tuple[int, ...]", shape), start, end)
    if stop != file_nbytes:
        raise CorruptError(f"entries end at byte {stop} of a file of {file_nbytes} bytes")
    return entries


def _checked(name: str, found: WireEntry) -> tuple[int, int]:
    """The entry's place, if the entry makes sense."""
    dtype, shape, offsets = found.dtype, found.shape, found.data_offsets
    if dtype is UNSET or shape is UNSET or offsets is UNSET:
        raise CorruptError(f"entry {shown(name)} lacks dtype, shape or data_offsets")
    if found.shardkeep is not UNSET:
        raise CorruptError(f"entry {shown(name)} has a field of __metadata__")
    start, stop = offsets
    check_entry(name, dtype, shape, start, stop - start)
    return offsets


def check_entry(name: str, dtype: str, shape: tuple[int, ...], start: int, nbytes: int) -> None:
    """Raise InvalidError unless an entry's bytes fit its dtype and shape, and lie aligned."""
    size = STORED_ITEMSIZES.get(dtype)
    if size is None:
        raise InvalidError(f"entry {shown(name)} has the unknown dtype {shown(dtype)}")
    # First the number of dims: a product of a million sizes would take for ever.
    if len(shape) > MAX_NDIM + 1:
        raise InvalidError(f"entry {shown(name)} has {len(shape)} dims")
    if math.prod(shape) * size != nbytes or min(shape, default=0) < 0:
        raise InvalidError(
            f"entry {shown(name)} of {shown(nbytes)} bytes does not fit {dtype} of shape "
            f"[{', '.join(map(shown, shape))}]"
        )
    if start % size or not 0 <= start <= MAX_INT - nbytes:
        raise InvalidError(
            f"entry {shown(name)} starts at {shown(start)}, no multiple of its item size {size}; "
            "order entries by falling item size"
        )

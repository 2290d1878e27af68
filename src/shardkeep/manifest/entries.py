"""Where in its file does each chunk lie?

Entries follow each other without holes, as safetensors demands, each at a multiple of its item
size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

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
    for name, found in wire.items():
        entry = entries[name] = _entry(name, found, header_nbytes)
        if entry.start != stop:
            raise CorruptError(
                f"entry {shown(name)} starts at byte {shown(entry.start)}, but the one before it "
                f"ends at {stop}: entries leave no holes and do not overlap"
            )
        stop = entry.stop
    if stop != file_nbytes:
        raise CorruptError(f"entries end at byte {stop} of a file of {file_nbytes} bytes")
    return entries


def _entry(name: str, found: WireEntry, header_nbytes: int) -> StoredEntry:
    dtype, shape, offsets = found.dtype, found.shape, found.data_offsets
    unset = msgspec.UnsetType
    if isinstance(dtype, unset) or isinstance(shape, unset) or isinstance(offsets, unset):
        raise CorruptError(f"entry {shown(name)} lacks dtype, shape or data_offsets")
    if not isinstance(found.shardkeep, unset):
        raise CorruptError(f"entry {shown(name)} has a field of __metadata__")
    start, stop = offsets
    check_entry(name, dtype, shape, start, stop - start)
    return StoredEntry(dtype, shape, header_nbytes + start, header_nbytes + stop)


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

"""Where in its file does each chunk lie?

Entries follow each other without holes, as safetensors demands, each at a multiple of its item
size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, cast

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


class _Chunk(Protocol):
    """What a checked entry has."""

    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def data_offsets(self) -> tuple[int, int]: ...


class StoredEntries(Mapping[str, StoredEntry]):
    """The entries of a file by name. There may be many thousands: each is made when asked for."""

    def __init__(self, chunks: Mapping[str, _Chunk], header_nbytes: int) -> None:
        self._chunks = chunks
        self._header_nbytes = header_nbytes

    def __getitem__(self, name: str) -> StoredEntry:
        found = self._chunks[name]
        start, stop = (self._header_nbytes + offset for offset in found.data_offsets)
        return StoredEntry(found.dtype, found.shape, start, stop)

    def __iter__(self) -> Iterator[str]:
        return iter(self._chunks)

    def __len__(self) -> int:
        return len(self._chunks)

    def starts(self, names: Sequence[str], dtype: str, shape: tuple[int, ...]) -> list[int] | None:
        """Where each of these starts; None unless all are there and have this dtype and shape."""
        chunks, origin = self._chunks, self._header_nbytes
        try:
            found = [chunks[name] for name in names]
        except KeyError:
            return None
        if any(one.dtype != dtype or one.shape != shape for one in found):
            return None
        return [origin + one.data_offsets[0] for one in found]


def stored_entries(
    wire: Mapping[str, WireEntry], header_nbytes: int, file_nbytes: int
) -> StoredEntries:
    """The entries with places in the file; they must fill all of it behind the header."""
    end = file_nbytes - header_nbytes
    stop = 0
    sizes: dict[object, tuple[int, int]] = {}
    """By dtype and shape, which many share: the bytes of such an entry, and of one item."""
    for name, found in wire.items():
        alike, offsets = (found.dtype, found.shape), found.data_offsets
        known = sizes.get(alike)
        if known is None or offsets is UNSET or found.shardkeep is not UNSET:
            offsets = _checked(name, found)
            known = sizes[alike] = offsets[1] - offsets[0], STORED_ITEMSIZES[str(found.dtype)]
        first, last = offsets
        nbytes, itemsize = known
        if last - first != nbytes or first % itemsize or not 0 <= first <= MAX_INT - header_nbytes:
            _checked(name, found)
        if first != stop:
            raise CorruptError(
                f"entry {shown(name)} starts at byte {shown(header_nbytes + first)}, but the one "
                f"before it ends at {header_nbytes + stop}: entries leave no holes and do not "
                "overlap"
            )
        stop = last
    if stop != end:
        raise CorruptError(
            f"entries end at byte {header_nbytes + stop} of a file of {file_nbytes} bytes"
        )
    # As `_checked` knows them: nothing is unset.
    return StoredEntries(cast("Mapping[str, _Chunk]", wire), header_nbytes)


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

"""What does the header of anyone's safetensors file say, and how is one written?

Eight bytes give the length of a JSON object; it lists tensors with their place in the data behind
it. Other libraries' headers have entries in any order and any spelling, so they are read less
strictly than our own, but every byte of the data must belong to just one tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from shardkeep.errors import CorruptError, InvalidError, UnsupportedError
from shardkeep.manifest import StoredEntry, tensor_nbytes
from shardkeep.manifest.canonical import brief, encode_json
from shardkeep.manifest.dtypes import STORED_ITEMSIZES
from shardkeep.manifest.header import LENGTH_NBYTES
from shardkeep.manifest.limits import FREE_ENTRIES, MAX_HEADER_LENGTH, MIN_ENTRY_NBYTES, PAGE
from shardkeep.manifest.plain_json import shown
from shardkeep.storage.protocols import CanMeasure, CanRead
from shardkeep.transfer.collecting import gc_paused

METADATA = "__metadata__"

OUR_DTYPES = {
    **{name: name for name in STORED_ITEMSIZES},
    "F8_E4M3FNUZ": "F8_E4M3FNUZ",
    "F8_E5M2FNUZ": "F8_E5M2FNUZ",
    "F8_E8M0": "F8_E8M0FNU",
    "C64": "C64",
}
"""Our names of the dtypes of safetensors."""

THEIR_DTYPES = {ours: theirs for theirs, ours in OUR_DTYPES.items()}

_SUB_BYTE = frozenset(("F4", "F6_E2M3", "F6_E3M2"))
_LFS_POINTER = b"version https://git-lfs"


class HeaderFiles(CanRead, CanMeasure, Protocol):
    """What is used of a storage."""

    @property
    def location(self) -> str: ...


@dataclass(frozen=True, slots=True)
class FileHeader:
    """The tensors of a file by key, in the order of their bytes; dtypes by our names."""

    entries: Mapping[str, StoredEntry]
    metadata: Mapping[str, str]
    data_start: int
    file_nbytes: int


class _Entry(msgspec.Struct, gc=False):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class _Outline(msgspec.Struct):
    metadata: msgspec.Raw = msgspec.field(name=METADATA, default=msgspec.Raw(b"null"))


_outline = msgspec.json.Decoder(_Outline)
_objects = msgspec.json.Decoder(dict[str, msgspec.Raw])
_entry = msgspec.json.Decoder(_Entry)
_texts = msgspec.json.Decoder(dict[str, str] | None)


def read_header(files: HeaderFiles, name: str) -> FileHeader:
    """The header of a file, checked against the file's size; CorruptError with the reason."""
    where = f"{files.location}/{name}"
    nbytes = files.size(name)
    first = files.read(name, 0, min(nbytes, len(_LFS_POINTER)))
    if first == _LFS_POINTER:
        raise CorruptError(f"{where} only points to the file in Git LFS: run `git lfs pull`")
    length = int.from_bytes(first[:LENGTH_NBYTES], "little")
    if nbytes < LENGTH_NBYTES or length > min(MAX_HEADER_LENGTH, nbytes - LENGTH_NBYTES):
        raise CorruptError(
            f"{where} is no safetensors file, or was cut off: its {nbytes} bytes do not hold the "
            "header that they announce; fetch it again"
        )
    text = files.read(name, LENGTH_NBYTES, length)
    try:
        with gc_paused():
            return _decode(text, nbytes)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptError(f"{where}: the header is no JSON of safetensors: {error}") from None
    except RecursionError:
        raise CorruptError(f"{where}: the header is nested too deeply") from None
    except (CorruptError, InvalidError) as error:
        raise CorruptError(f"{where}: {brief(error)}") from error
    except UnsupportedError as error:
        raise UnsupportedError(f"{where}: {brief(error)}") from error


def _decode(text: bytes, file_nbytes: int) -> FileHeader:
    metadata = _metadata(text)
    wire = _objects.decode(text)
    wire.pop(METADATA, None)
    data_start = LENGTH_NBYTES + len(text)
    found = [(key, _entry.decode(raw)) for key, raw in wire.items()]
    found.sort(key=lambda item: item[1].data_offsets)
    entries: dict[str, StoredEntry] = {}
    sizes: dict[tuple[str, tuple[int, ...]], int] = {}
    stop = 0
    for key, one in found:
        start, last = one.data_offsets
        alike = one.dtype, one.shape
        if alike not in sizes:
            sizes[alike] = _nbytes_of(key, one)
        # A key that is there twice leaves a hole, too: only its last entry is found here.
        if start != stop or last - start != sizes[alike]:
            raise CorruptError(
                f"{shown(key)}, {shown(one.dtype)} of shape {list(one.shape)[:8]}, does not fit "
                f"its place from byte {shown(start)} to {shown(last)}: tensors fill the data "
                f"without holes, and the one before ends at {stop}"
            )
        stop = last
        place = data_start + start, data_start + last
        entries[key] = StoredEntry(OUR_DTYPES[one.dtype], one.shape, *place)
    if data_start + stop != file_nbytes:
        raise CorruptError(
            f"the tensors end at byte {data_start + stop}, the file at {file_nbytes}: it was cut "
            "off, or something was added; fetch it again"
        )
    return FileHeader(entries, metadata or {}, data_start, file_nbytes)


def _metadata(text: bytes) -> dict[str, str] | None:
    """What the file says of itself; looked at first, and without the entries.

    These are then counted before they are made, since short ones that say nothing would take many
    times the memory of the text.
    """
    raw = _outline.decode(text).metadata
    metadata = _texts.decode(raw)
    count = text.count(b"{") - bytes(raw).count(b"{")
    if count > FREE_ENTRIES + len(text) // MIN_ENTRY_NBYTES:
        raise CorruptError(f"more entries than {len(text)} bytes can describe: {count}")
    return metadata


def _nbytes_of(key: str, entry: _Entry) -> int:
    if entry.dtype in _SUB_BYTE:
        raise UnsupportedError(
            f"{shown(key)} is {entry.dtype}, whose items are smaller than a byte; unpack it first"
        )
    if entry.dtype not in OUR_DTYPES:
        raise CorruptError(f"{shown(key)} has the unknown dtype {shown(entry.dtype)}")
    return tensor_nbytes(OUR_DTYPES[entry.dtype], entry.shape)


def encode_header(
    tensors: Sequence[tuple[str, str, tuple[int, ...]]], metadata: Mapping[str, str]
) -> bytes:
    """All bytes before the data of these (key, dtype, shape), which follow each other.

    The data start at a multiple of 4096, so that they can be mapped.
    """
    wire: dict[str, object] = {METADATA: dict(metadata)}
    start = 0
    for key, dtype, shape in tensors:
        stop = start + tensor_nbytes(dtype, shape)
        wire[key] = _Entry(THEIR_DTYPES[dtype], shape, (start, stop))
        start = stop
    text = encode_json(wire)
    total = -(-(LENGTH_NBYTES + len(text)) // PAGE) * PAGE
    if total - LENGTH_NBYTES > MAX_HEADER_LENGTH:
        raise InvalidError(
            f"a header of {total} bytes for {len(tensors)} tensors is more than safetensors "
            f"allows ({MAX_HEADER_LENGTH}): write smaller shards"
        )
    length = total - LENGTH_NBYTES
    return length.to_bytes(LENGTH_NBYTES, "little") + text.ljust(length)

"""What does the header of a data file say, and can it be trusted?

A data file is a safetensors file. Its header lists the chunks, and under `__metadata__` the
digests of the data's blocks and the rank's own values. `header_plan` writes headers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from shardkeep.boxes import Box
from shardkeep.errors import CorruptError, InvalidError
from shardkeep.manifest.canonical import brief, check_density, decode_json, with_fresh_stack
from shardkeep.manifest.digests import Digests, header_digest
from shardkeep.manifest.dtypes import storage_entry
from shardkeep.manifest.entries import StoredEntries, StoredEntry, WireEntry, stored_entries
from shardkeep.manifest.files import FileRecord
from shardkeep.manifest.head import check_version
from shardkeep.manifest.limits import (
    FREE_ENTRIES,
    MAX_BLOCK_NBYTES,
    MAX_HEADER_LENGTH,
    MAX_NUMBER,
    MAX_RANKS,
    MIN_BLOCK_NBYTES,
    MIN_ENTRY_NBYTES,
    PAGE,
)
from shardkeep.manifest.model import Manifest, TensorRecord
from shardkeep.manifest.names import check_save_id, chunk_name, chunk_names
from shardkeep.manifest.nodes import Node
from shardkeep.manifest.plain_json import shown
from shardkeep.manifest.tree_codec import decode_tree

LENGTH_NBYTES = 8
"""The length of the JSON header stands in the first bytes, little-endian."""

_NOTES = re.compile(rb'\{"__metadata__":\{"shardkeep":"(?:[^"\\]++|\\.)*+"\}')
_BEFORE_DIGESTS = re.compile(
    rb'\{"__metadata__":\{"shardkeep":"\{\\"version\\":[0-9]+,\\"save_id\\":\\"[0-9a-f]+\\",'
    rb'\\"rank\\":[0-9]+,\\"number\\":[0-9]+,\\"block\\":[0-9]+,\\"digests\\":\\"'
)
_HEAD = re.compile(rb'\{"__metadata__":\{"(shardkeep)":"\{\\"version\\":([0-9]{1,9}),')


@dataclass(frozen=True, slots=True)
class Header:
    """What a data file holds, and the digest of each of its blocks."""

    save_id: str
    rank: int
    number: int
    header_nbytes: int
    """Where the data, and with them the first block, start."""
    file_nbytes: int
    block_nbytes: int
    digests: Digests
    entries: StoredEntries
    per_rank: Mapping[str, Node]
    """The rank's own values by key."""

    def chunk(self, record: TensorRecord, box: Box, *, where: str) -> StoredEntry:
        """The entry that holds `box` of a tensor; raises CorruptError if it is not as listed."""
        name = chunk_name(record.key, box, record.shape)
        entry = self.entries.get(name)
        if entry is None:
            raise CorruptError(f"{where}: holds no chunk {name!r}, though the manifest says so")
        expected = storage_entry(record.dtype, box.shape)
        if (entry.dtype, entry.shape) != expected:
            raise CorruptError(
                f"{where}: chunk {name!r} is {entry.dtype} of shape {list(entry.shape)}; "
                f"the manifest says {expected[0]} of shape {list(expected[1])}"
            )
        return entry

    def starts(self, records: Sequence[TensorRecord], box: Box, *, where: str) -> list[int]:
        """Where `box` of each of many tensors of one dtype and shape starts; as `chunk`."""
        if not records:
            return []
        if not records:
            return []
        names = chunk_names([record.key for record in records], box, records[0].shape)
        # There may be many thousands: what is as it should be is not looked at one by one.
        found = self.entries.starts(names, *storage_entry(records[0].dtype, box.shape))
        return found or [self.chunk(record, box, where=where).start for record in records]


class _Metadata(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    save_id: str
    rank: int
    number: int
    block: int
    digests: str
    per_rank: dict[str, Any]


_entries_decoder = msgspec.json.Decoder(dict[str, WireEntry])
_metadata_decoder = msgspec.json.Decoder(_Metadata)


def header_length(first_bytes: bytes, *, file_nbytes: int, where: str) -> int:
    """How many bytes come before the data, told by the first eight; bounded and within the file."""
    if len(first_bytes) < LENGTH_NBYTES:
        raise CorruptError(f"{where}: {len(first_bytes)} bytes are no data file")
    length = int.from_bytes(first_bytes[:LENGTH_NBYTES], "little")
    total = LENGTH_NBYTES + length
    if length > MAX_HEADER_LENGTH:
        raise CorruptError(f"{where}: a header of {length} bytes; at most {MAX_HEADER_LENGTH}")
    if total > file_nbytes:
        raise CorruptError(f"{where}: a header of {length} bytes in a file of {file_nbytes}")
    if total % PAGE or not length:
        raise CorruptError(f"{where}: the data start at byte {total}, no multiple of {PAGE}")
    return total


def decode_header(
    data: bytes, *, file_nbytes: int, where: str, digest: int | None = None
) -> Header:
    """The header in `data`, which are all the bytes before a file's data.

    Without the `digest` that the manifest lists, only what contradicts itself is found. Raises
    CorruptError with the reason, or VersionError.
    """
    total = header_length(data, file_nbytes=file_nbytes, where=where)
    try:
        if len(data) != total:
            raise CorruptError(f"a header of {total} bytes, but {len(data)} were read")
        if digest is not None and header_digest(data) != digest:
            raise CorruptError("the header's digest does not match: the file is damaged")
        check_version(_HEAD, data[LENGTH_NBYTES:PAGE], where)
        text, digests = _without_digests(data)
        check_header_density(text, LENGTH_NBYTES, nbytes_left_out=total - len(text))
        return with_fresh_stack(lambda: _decode(text, digests, total, file_nbytes))
    except (CorruptError, InvalidError) as error:
        raise CorruptError(f"{where}: {brief(error)}") from error


def decode_listed_header(
    data: bytes, *, manifest: Manifest, index: int, file_nbytes: int, where: str
) -> Header:
    """The header of the manifest's file `index`, checked against all that the manifest says."""
    record = manifest.files[index]
    if file_nbytes != record.nbytes:
        raise CorruptError(f"{where}: {file_nbytes} bytes; the manifest says {record.nbytes}")
    header = decode_header(data, file_nbytes=file_nbytes, where=where, digest=record.header_digest)
    _check_identity(header, record, manifest.save_id, where)
    return header


def _check_identity(header: Header, record: FileRecord, save_id: str, where: str) -> None:
    found = header.save_id, header.rank, header.number, header.header_nbytes
    expected = save_id, record.rank, record.number, record.header_nbytes
    if found != expected:
        raise CorruptError(
            f"{where}: save id, rank, number and header size are {found}; "
            f"the manifest says {expected}"
        )


def _without_digests(data: bytes) -> tuple[bytes, Digests]:
    """The header as if there were no digests, and these: nearly all of it may be theirs.

    Hex digits read as they are written, so that the JSON need not be decoded, encoded and compared
    with them in it. What does not look as it should stays, to be judged with the rest.
    """
    before = _BEFORE_DIGESTS.match(data, LENGTH_NBYTES)
    stop = data.find(b"\\", before.end()) if before else -1
    if before is None or stop < 0:
        return data, Digests()
    try:
        digests = Digests.from_hex(data[before.end() : stop])
    except CorruptError:
        return data, Digests()
    return data[: before.end()] + data[stop:], digests


def _decode(text: bytes, digests: Digests, header_nbytes: int, file_nbytes: int) -> Header:
    """The header of this text, from which digests may have been taken out."""
    stripped = text[LENGTH_NBYTES:].rstrip(b" ")
    if len(text) - LENGTH_NBYTES - len(stripped) >= PAGE:
        raise CorruptError(f"the header is padded with {PAGE} spaces or more")
    wire = decode_json(stripped, _entries_decoder)
    metadata = _metadata(wire.pop("__metadata__").shardkeep)
    entries = stored_entries(wire, header_nbytes, file_nbytes)
    if metadata.digests:
        digests = Digests.from_hex(digests.hex() + metadata.digests)
    check_blocks(metadata.block, len(digests), file_nbytes - header_nbytes)
    return Header(
        check_save_id(metadata.save_id),
        metadata.rank,
        metadata.number,
        header_nbytes,
        file_nbytes,
        metadata.block,
        digests,
        entries,
        _per_rank(metadata.per_rank),
    )


def check_header_density(data: bytes, start: int = 0, *, nbytes_left_out: int = 0) -> None:
    """Raise InvalidError for a header that would take far more memory than its length tells.

    Its length counts so many bytes more than `data`.
    """
    notes = _NOTES.match(data, start)
    stop = notes.end() if notes else start
    check_density(data[:stop], nbytes_left_out=nbytes_left_out)
    nbytes = len(data) + nbytes_left_out
    # Before any further copy of the header is made.
    count, limit = data.count(b'":{', stop), FREE_ENTRIES + nbytes // MIN_ENTRY_NBYTES
    if count > limit:
        raise InvalidError(f"more entries than {nbytes} bytes can describe: {count}")


def _metadata(text: str | msgspec.UnsetType) -> _Metadata:
    if isinstance(text, msgspec.UnsetType):
        raise CorruptError("__metadata__ has no 'shardkeep'")
    found = decode_json(text.encode(), _metadata_decoder)
    if not (0 <= found.rank < MAX_RANKS and 0 <= found.number < MAX_NUMBER):
        raise CorruptError(f"no file has rank {shown(found.rank)} and number {shown(found.number)}")
    if found.per_rank and found.number:
        raise CorruptError(f"file number {found.number} has per_rank values; only number 0 may")
    return found


def check_blocks(block_nbytes: int, digest_count: int, data_nbytes: int) -> None:
    """Raise InvalidError unless so many digests of such blocks cover the data."""
    is_power = block_nbytes > 0 and block_nbytes & (block_nbytes - 1) == 0
    if not is_power or not MIN_BLOCK_NBYTES <= block_nbytes <= MAX_BLOCK_NBYTES:
        raise InvalidError(
            f"blocks of {shown(block_nbytes)} bytes; expected a power of two, 4096 to 2**24"
        )
    expected = -(-data_nbytes // block_nbytes)
    if digest_count != expected:
        raise InvalidError(f"{digest_count} digests for {expected} blocks")


def _per_rank(data: Mapping[str, object]) -> dict[str, Node]:
    if list(data) != sorted(data):
        raise CorruptError("per_rank: keys are not sorted")
    return {key: decode_tree(node, tensor_count=0) for key, node in data.items()}

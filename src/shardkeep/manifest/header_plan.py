"""How is a data file's header written when its digests are known last?

Digests have a fixed width, so that the header's size, and with it the place of every chunk, is
known before a byte of data is hashed. The data are written, then the header in front of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from shardkeep.errors import InvalidError
from shardkeep.manifest.canonical import encode_json, with_fresh_stack
from shardkeep.manifest.codec import VERSION
from shardkeep.manifest.digests import Digests
from shardkeep.manifest.dtypes import STORED_ITEMSIZES
from shardkeep.manifest.entries import check_entry
from shardkeep.manifest.header import LENGTH_NBYTES, check_blocks, check_header_density
from shardkeep.manifest.limits import MAX_HEADER_LENGTH, PAGE
from shardkeep.manifest.names import file_name
from shardkeep.manifest.nodes import Node
from shardkeep.manifest.tree_codec import encode_tree

EntrySpec = tuple[str, str, tuple[int, ...], int]
"""Name, dtype and shape as stored (see `dtypes.storage_entry`), bytes."""

_DIGEST_WIDTH = 16


@dataclass(frozen=True, slots=True)
class HeaderPlan:
    """A header that lacks its digests only."""

    before: bytes
    after: bytes
    block_count: int
    header_nbytes: int
    """Where the data start: a multiple of 4096."""

    def encode(self, digests: Sequence[int]) -> bytes:
        """All bytes before the data, given the XXH3-64 of each block of the data."""
        if len(digests) != self.block_count:
            raise InvalidError(f"{len(digests)} digests for {self.block_count} blocks")
        length = self.header_nbytes - LENGTH_NBYTES
        text = self.before + Digests.of(digests).hex().encode() + self.after
        return length.to_bytes(LENGTH_NBYTES, "little") + text.ljust(length)


class EntryTable(msgspec.Struct, frozen=True):
    """What a header says of its chunks: the same for every save that writes them."""

    text: bytes
    """As JSON."""
    data_nbytes: int


class _Entry(msgspec.Struct, gc=False):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def plan_header(
    entries: Sequence[EntrySpec] | EntryTable,
    *,
    save_id: str,
    rank: int,
    number: int,
    block_nbytes: int,
    data_nbytes: int,
    per_rank: Mapping[str, Node],
) -> HeaderPlan:
    """The header of a file whose data are these entries, one after the other.

    Entries must be ordered by falling item size; `per_rank` goes into file number 0 only.
    """
    file_name(save_id, rank, number)
    block_count = -(-data_nbytes // max(1, block_nbytes))
    check_blocks(block_nbytes, block_count, data_nbytes)
    if per_rank and number:
        raise InvalidError(f"per_rank values go into file number 0, not {number}")
    table = entries if isinstance(entries, EntryTable) else encode_entries(entries)
    if table.data_nbytes != data_nbytes:
        raise InvalidError(
            f"entries of {table.data_nbytes} bytes make no data of {data_nbytes} bytes"
        )
    own = with_fresh_stack(lambda: encode_json(_per_rank(per_rank)))
    about = {"version": VERSION, "save_id": save_id, "rank": rank, "number": number}
    before = encode_json({**about, "block": block_nbytes})[:-1] + b',"digests":"'
    return _plan(
        b'{"__metadata__":{"shardkeep":"' + _escaped(before),
        _escaped(b'","per_rank":' + own + b"}") + b'"}' + _rest(table.text),
        block_count,
    )


def _plan(before: bytes, after: bytes, block_count: int) -> HeaderPlan:
    nbytes = LENGTH_NBYTES + len(before) + _DIGEST_WIDTH * block_count + len(after)
    header_nbytes = -(-nbytes // PAGE) * PAGE
    if header_nbytes - LENGTH_NBYTES > MAX_HEADER_LENGTH:
        raise InvalidError(
            f"a header of {header_nbytes} bytes is too long, at most {MAX_HEADER_LENGTH}: write "
            "fewer chunks into one file, or larger blocks"
        )
    check_header_density(before + after)
    return HeaderPlan(before, after, block_count, header_nbytes)


def encode_entries(entries: Sequence[EntrySpec]) -> EntryTable:
    """The entries of a header, whose data follow each other."""
    made: dict[str, _Entry] = {}
    start = 0
    known: set[object] = set()
    for name, dtype, shape, nbytes in entries:
        # Of many alike the first speaks for all, but for where each starts.
        alike = dtype, shape, nbytes
        if alike not in known or start % STORED_ITEMSIZES[dtype]:
            check_entry(name, dtype, shape, start, nbytes)
            known.add(alike)
        made[name] = _Entry(dtype, shape, (start, start + nbytes))
        start += nbytes
    if len(made) != len(entries) or "__metadata__" in made:
        raise InvalidError("two entries have the same name, or one is called '__metadata__'")
    return EntryTable(encode_json(made), start)


def _per_rank(values: Mapping[str, Node]) -> dict[str, object]:
    return {key: encode_tree(values[key], tensor_count=0) for key in sorted(values)}


def _escaped(text: bytes) -> bytes:
    """JSON text as it stands within a JSON string."""
    return encode_json(text.decode())[1:-1]


def _rest(chunks: bytes) -> bytes:
    """The entries, continuing an object that is open."""
    return b"}" if chunks == b"{}" else b"," + chunks[1:]

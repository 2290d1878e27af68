"""Which chunks does this rank write to which file, and what are they called there?

All but the values is the same at every save of the same view, the table of a file's header
included: of many thousand tensors, only the first save works it out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import msgspec

from shardkeep.errors import LayoutError
from shardkeep.manifest import (
    EntryTable,
    chunk_name,
    encode_entries,
    itemsize,
    storage_entry,
    tensor_nbytes,
)
from shardkeep.plan import Entry
from shardkeep.plan.divide import Chunk, Division
from shardkeep.state.frozen import Memory
from shardkeep.transfer.write import OutChunk


class _Planned(msgspec.Struct, frozen=True, gc=False):
    """A chunk without its values: where in this rank's memory it lies."""

    key: str
    name: str
    dtype: str
    number: int
    buffer: int
    shape: tuple[int, ...]
    place: tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class Outgoing:
    """What one rank writes: file by file, in each in the order of the file."""

    planned: Sequence[_Planned]
    tables: Mapping[int, EntryTable]
    """By the number of the file: what its header says of the chunks."""

    def chunks(self, memory: Mapping[str, Sequence[Memory]]) -> list[OutChunk]:
        """The chunks with the memory that holds them."""
        found: list[OutChunk] = []
        for one in self.planned:
            part = memory[one.key][one.buffer]
            if part.shape != one.shape:
                part = _cut_out(part, one)
            found.append(OutChunk(one.name, one.dtype, part, one.number))
        return found


def _cut_out(memory: Memory, planned: _Planned) -> Memory:
    part = memory[planned.place]
    if part.shape != planned.shape:
        raise LayoutError(
            f"{planned.key!r}: this rank's memory has shape {tuple(memory.shape)}, too little for "
            f"its part of shape {planned.shape}; check the tensor's layout"
        )
    return part


def plan_outgoing(
    entries: Mapping[str, Entry], divisions: Mapping[str, Division], me: int
) -> Outgoing:
    """What `me` writes of tensors that are divided so."""
    planned = [
        _planned(key, entries[key], chunk)
        for key, division in divisions.items()
        for chunk in division.chunks_of(me)
    ]
    # Falling item size keeps every entry aligned, without holes between them.
    planned.sort(key=lambda one: (one.number, -itemsize(one.dtype)))
    tables = {
        number: _table(list(chunks)) for number, chunks in groupby(planned, lambda one: one.number)
    }
    return Outgoing(planned, tables)


def _planned(key: str, entry: Entry, chunk: Chunk) -> _Planned:
    name, place = chunk_name(key, chunk.box, entry.shape), chunk.place
    return _Planned(key, name, entry.dtype, chunk.number, chunk.buffer, place.shape, place.slices())


def _table(chunks: Sequence[_Planned]) -> EntryTable:
    return encode_entries(
        [
            (one.name, *storage_entry(one.dtype, one.shape), tensor_nbytes(one.dtype, one.shape))
            for one in chunks
        ]
    )

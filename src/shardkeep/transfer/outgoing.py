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
    ChunkNamer,
    EntryTable,
    encode_entries,
    itemsize,
    storage_entry,
    tensor_nbytes,
)
from shardkeep.plan import Entry
from shardkeep.plan.divide import Chunk, Division
from shardkeep.state.frozen import Memory
from shardkeep.transfer.write import OutChunk


class _Kind(msgspec.Struct, frozen=True, gc=False):
    """What the chunks of tensors alike share: what they are, and where in memory they lie."""

    dtype: str
    number: int
    """Of the file."""
    buffer: int
    shape: tuple[int, ...]
    place: tuple[slice, ...]
    namer: ChunkNamer
    stored_as: tuple[str, tuple[int, ...]]
    nbytes: int
    order: tuple[int, int]
    """Falling item size keeps every entry of a file aligned, without holes between them."""


class _Planned(msgspec.Struct, frozen=True, gc=False):
    """A chunk without its values."""

    key: str
    name: str
    kind: _Kind


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
            kind = one.kind
            part = memory[one.key][kind.buffer]
            if part.shape != kind.shape:
                part = _cut_out(part, one)
            found.append(OutChunk(one.name, kind.dtype, part, kind.number))
        return found


def _cut_out(memory: Memory, planned: _Planned) -> Memory:
    part = memory[planned.kind.place]
    if part.shape != planned.kind.shape:
        raise LayoutError(
            f"{planned.key!r}: this rank's memory has shape {tuple(memory.shape)}, too little for "
            f"its part of shape {planned.kind.shape}; check the tensor's layout"
        )
    return part


def plan_outgoing(
    entries: Mapping[str, Entry], divisions: Mapping[str, Division], me: int
) -> Outgoing:
    """What `me` writes of tensors that are divided so."""
    known: dict[tuple[int, str], list[_Kind]] = {}
    planned: list[_Planned] = []
    for key, division in divisions.items():
        # A division is of one shape, and tensors alike have the same one.
        alike = id(division), entries[key].dtype
        kinds = known.get(alike)
        if kinds is None:
            chunks = division.chunks_of(me)
            kinds = known[alike] = [_kind(entries[key], chunk) for chunk in chunks]
        planned += [_Planned(key, kind.namer.name(key), kind) for kind in kinds]
    planned.sort(key=lambda one: one.kind.order)
    files = groupby(planned, lambda one: one.kind.number)
    return Outgoing(planned, {number: _table(list(chunks)) for number, chunks in files})


def _kind(entry: Entry, chunk: Chunk) -> _Kind:
    dtype, shape = entry.dtype, chunk.place.shape
    return _Kind(
        dtype,
        chunk.number,
        chunk.buffer,
        shape,
        chunk.place.slices(),
        ChunkNamer.of(chunk.box, entry.shape),
        storage_entry(dtype, shape),
        tensor_nbytes(dtype, shape),
        (chunk.number, -itemsize(dtype)),
    )


def _table(chunks: Sequence[_Planned]) -> EntryTable:
    kinds = [(one.name, one.kind) for one in chunks]
    return encode_entries([(name, *kind.stored_as, kind.nbytes) for name, kind in kinds])

"""How do chunks get from tensor memory into data files, hashed while they are in the cache?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
import torch
import xxhash

from shardkeep.manifest import (
    EntrySpec,
    EntryTable,
    FileRecord,
    Node,
    encode_entries,
    file_name,
    header_digest,
    plan_header,
    storage_entry,
)
from shardkeep.plan import cut
from shardkeep.state.frozen import FrozenTensor, Memory, thawed
from shardkeep.storage.protocols import StreamSink
from shardkeep.storage.rooms import empty_room
from shardkeep.transfer.moving import copy_bytes
from shardkeep.transfer.progress import Meter

BLOCK_NBYTES = 256 * 1024
_STEP_NBYTES = 1024 * 1024
# What is hashed and written in one go: little enough for the cache, enough that calls cost nothing.
# Not 2 MiB or more: for these the kernel looks for huge pages, which may be long in coming.
_WRITE_NBYTES = 7 * BLOCK_NBYTES
_SMALL_NBYTES = 64 * 1024
Array = np.ndarray[Any, np.dtype[Any]]


class Sink(Protocol):
    """A file that is being written."""

    def write(self, offset: int, buffers: Sequence[Any], /) -> None: ...
    def finish(self) -> None: ...
    def abort(self) -> None: ...


class Target(Protocol):
    """What is used of a storage."""

    def create(self, key: str, /) -> Sink: ...
    def delete(self, key: str, /, *, missing_ok: bool = False) -> None: ...


# Made by the 10,000s: a Struct is many times as fast as a dataclass.
class OutChunk(msgspec.Struct, frozen=True, gc=False):
    """A chunk to write: its name in the file, what it is, and the memory that holds it."""

    name: str
    dtype: str
    memory: Memory
    number: int


@dataclass(frozen=True, slots=True)
class Job:
    """All that one rank writes in one save."""

    save_id: str
    rank: int
    chunks: Sequence[OutChunk]
    per_rank: Mapping[str, Node]
    tables: Mapping[int, EntryTable] = field(default_factory=dict[int, EntryTable])
    """By the number of a file, if known: what its header says of its chunks, in their order."""


def write_files(target: Target, job: Job, meter: Meter) -> list[FileRecord]:
    """Write the rank's files, one thread each; the records that go into the manifest.

    If one fails, what was written of all is removed.
    """
    numbers = sorted({chunk.number for chunk in job.chunks} | ({0} if job.per_rank else set()))
    sinks: dict[int, Sink] = {}
    try:
        for number in numbers:
            sinks[number] = target.create(file_name(job.save_id, job.rank, number))
        with ThreadPoolExecutor(max(1, len(numbers)), "shardkeep-write") as pool:
            acts = [pool.submit(_write_file, sinks[n], job, n, meter) for n in numbers]
            return [act.result() for act in acts]
    except BaseException:
        for number, sink in sinks.items():
            # The cause counts; what cannot be removed now, prune removes.
            with suppress(OSError):
                sink.abort()
                # A finished file is no longer the sink's to remove.
                target.delete(file_name(job.save_id, job.rank, number), missing_ok=True)
        raise


def _write_file(sink: Sink, job: Job, number: int, meter: Meter) -> FileRecord:
    chunks = [chunk for chunk in job.chunks if chunk.number == number]
    table = job.tables.get(number)
    if table is None:
        # Falling item size keeps every entry aligned, without holes between them.
        chunks.sort(key=lambda chunk: -chunk.memory.itemsize)
        table = encode_entries([_entry(chunk) for chunk in chunks])
    data_nbytes = sum([chunk.memory.nbytes for chunk in chunks])
    header = plan_header(
        table,
        save_id=job.save_id,
        rank=job.rank,
        number=number,
        block_nbytes=BLOCK_NBYTES,
        data_nbytes=data_nbytes,
        per_rank=job.per_rank if number == 0 else {},
    )
    if isinstance(sink, StreamSink):
        head = header.encode(_hashed(chunks))
        _stream(sink, head, chunks, meter)
    else:
        writer = _BlockWriter(sink, header.header_nbytes, meter)
        for piece in _packed(chunks):
            writer.write(piece.data)
        head = header.encode(writer.close())
        sink.write(0, [head])
    sink.finish()
    return FileRecord(
        job.rank,
        number,
        header.header_nbytes + data_nbytes,
        header.header_nbytes,
        header_digest(head),
    )


def _entry(chunk: OutChunk) -> EntrySpec:
    memory = chunk.memory
    return (chunk.name, *storage_entry(chunk.dtype, tuple(memory.shape)), memory.nbytes)


def _hashed(chunks: Sequence[OutChunk]) -> list[int]:
    """The digests of all blocks, ahead of the data: what is sent in order starts with them."""
    hasher = _BlockHasher()
    for piece in _packed(chunks):
        hasher.add(piece.data)
    return hasher.close()


def _stream(sink: StreamSink, head: bytes, chunks: Sequence[OutChunk], meter: Meter) -> None:
    sink.write_kept(0, [head])
    offset = len(head)
    for piece in _packed(chunks):
        write = sink.write_kept if piece.lasts else sink.write
        for at in range(0, len(piece.data), _STEP_NBYTES):
            step = piece.data[at : at + _STEP_NBYTES]
            write(offset, [step.data])
            offset += len(step)
            meter.add(len(step))


class _Piece(NamedTuple):
    """Bytes to write."""

    data: Array
    lasts: bool
    """Whether they are the tensor's own memory; else they change with the next piece."""


def _packed(chunks: Sequence[OutChunk]) -> Iterator[_Piece]:
    """The chunks' bytes in order; small ones joined, so that each write is worth its call."""
    room = _Room()
    for chunk in chunks:
        memory = chunk.memory
        nbytes = memory.nbytes
        if room.used and (nbytes > _SMALL_NBYTES or room.used + nbytes > _STEP_NBYTES):
            yield room.packed()
        if nbytes > _SMALL_NBYTES:
            yield from _pieces(memory, room.bytes)
        elif nbytes:
            room.add(memory, nbytes)
    if room.used:
        yield room.packed()


class _Room:
    """Memory in which small chunks are joined. Of these there may be many thousands."""

    def __init__(self) -> None:
        self.bytes = empty_room(_STEP_NBYTES)
        self._address: int = self.bytes.ctypes.data
        self.used = 0
        self._targets: list[int] = []
        self._sources: list[int] = []
        self._sizes: list[int] = []

    def add(self, memory: Memory, nbytes: int) -> None:
        """Append a chunk; what lies in one piece is copied later, along with others."""
        if isinstance(memory, torch.Tensor) and lies_in_one_piece(memory):
            self._targets.append(self._address + self.used)
            self._sources.append(memory.data_ptr())
            self._sizes.append(nbytes)
        else:
            self.bytes[self.used : self.used + nbytes] = as_bytes(memory)
        self.used += nbytes

    def packed(self) -> _Piece:
        """All that was added; the room is free again with the next call."""
        columns = self._targets, self._sources, self._sizes
        copy_bytes(*(np.array(column, np.int64) for column in columns))
        for column in columns:
            column.clear()
        used, self.used = self.used, 0
        return _Piece(self.bytes[:used], lasts=False)


def _pieces(memory: Memory, room: Array) -> Iterator[_Piece]:
    """A large chunk: its own memory if it lies in one piece, else copies of bounded size."""
    if isinstance(memory, FrozenTensor) and memory.is_contiguous():
        yield from _thawed(memory, room)
        return
    if isinstance(memory, torch.Tensor) and lies_in_one_piece(memory):
        yield _Piece(as_bytes(memory), lasts=True)
        return
    for box in cut(tuple(memory.shape), max(1, 4 * _STEP_NBYTES // memory.itemsize)):
        yield _Piece(as_bytes(memory[box.slices()]), lasts=False)


def _thawed(memory: FrozenTensor, room: Array) -> Iterator[_Piece]:
    """What is not in this process's memory any more, by way of the same room."""
    for at in range(0, memory.nbytes, len(room)):
        piece = room[: min(len(room), memory.nbytes - at)]
        memory.read_into(at, piece.ctypes.data, len(piece))
        yield _Piece(piece, lasts=False)


def lies_in_one_piece(memory: torch.Tensor) -> bool:
    """Whether the bytes are in the host's memory as they are to be written."""
    return memory.is_contiguous() and memory.is_cpu and not memory.is_conj() and not memory.is_neg()


def as_bytes(memory: Memory) -> Array:
    """The tensor's bytes in row-major order, shared with it where they lie so."""
    memory = thawed(memory)
    plain = memory.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return plain.view(-1).view(torch.uint8).numpy()


class _BlockHasher:
    """Takes bytes one after the other and keeps the digest of each block."""

    def __init__(self) -> None:
        self._digests: list[int] = []
        self._open = xxhash.xxh3_64()
        self._room = BLOCK_NBYTES

    def add(self, data: Array) -> None:
        view, first = data.data, 0
        if self._room < BLOCK_NBYTES:
            first = min(self._room, len(view))
            self._fill(view[:first])
        last = len(view) - (len(view) - first) % BLOCK_NBYTES
        # All at once: other threads wait for every line of Python.
        self._digests += [
            xxhash.xxh3_64_intdigest(view[at : at + BLOCK_NBYTES])
            for at in range(first, last, BLOCK_NBYTES)
        ]
        if last < len(view):
            self._fill(view[last:])

    def _fill(self, data: memoryview) -> None:
        """Add to the block that is open, and close it when it is full."""
        self._open.update(data)
        self._room -= len(data)
        if not self._room:
            self._close_block()

    def _close_block(self) -> None:
        self._digests.append(self._open.intdigest())
        self._open.reset()
        self._room = BLOCK_NBYTES

    def close(self) -> list[int]:
        """The digests of all blocks; the last may be short."""
        if self._room < BLOCK_NBYTES:
            self._close_block()
        return self._digests


class _BlockWriter:
    """Writes bytes one after the other, each step hashed while it is in the cache."""

    def __init__(self, sink: Sink, offset: int, meter: Meter) -> None:
        self._sink = sink
        self._offset = offset
        self._meter = meter
        self._hasher = _BlockHasher()

    def write(self, data: Array) -> None:
        for at in range(0, len(data), _WRITE_NBYTES):
            step = data[at : at + _WRITE_NBYTES]
            self._hasher.add(step)
            self._sink.write(self._offset, [step])
            self._offset += len(step)
            self._meter.add(len(step))

    def close(self) -> list[int]:
        """The digests of all blocks; the last may be short."""
        return self._hasher.close()

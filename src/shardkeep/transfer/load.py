"""How do wanted boxes of stored tensors reach memory? Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardkeep.boxes import Box
from shardkeep.errors import CorruptError
from shardkeep.manifest import Manifest, TensorRecord, itemsize
from shardkeep.plan.reads import Piece, Read, plan_reads
from shardkeep.storage import CanReadInto
from shardkeep.transfer.open_manifest import Headers
from shardkeep.transfer.progress import Meter
from shardkeep.transfer.read import Array, FileReads, OpenFile, Reader, nbytes_of

WINDOW_NBYTES = 8 * 1024 * 1024
MAX_GAP_NBYTES = 512 * 1024

BIT_DTYPES: dict[int, Any] = {
    1: np.uint8,
    2: np.uint16,
    4: np.uint32,
    8: np.uint64,
    16: np.complex128,
}
"""An item of each size, whatever it means."""


@dataclass(frozen=True, slots=True)
class Want:
    """A box of a stored tensor, and the memory that it goes to.

    The array has the box's shape and items of the stored size; what they mean is not its matter.
    """

    record: TensorRecord
    box: Box
    array: Array


@dataclass(frozen=True, slots=True)
class FilePlan:
    """The reads of one file, and the arrays that they fill."""

    index: int
    file: OpenFile
    reads: list[Read]
    arrays: list[Array]

    @property
    def nbytes(self) -> int:
        """What is read, whole blocks included."""
        return sum(nbytes_of(self.file, read) for read in self.reads)


def plan_load(
    manifest: Manifest, headers: Headers, wants: Sequence[Want], *, threads: int
) -> list[FilePlan]:
    """What to read of which file; reads the headers of these files, but no data."""
    places = [
        (want, chunk, index)
        for want in wants
        for chunk, index in manifest.chunks_meeting(want.record, want.box)
    ]
    headers.fetch(dict.fromkeys(index for _, _, index in places), threads=threads)
    pieces: dict[int, list[Piece]] = {}
    arrays: dict[int, list[Array]] = {}
    for want, chunk, index in places:
        own = arrays.setdefault(index, [])
        piece, array = _piece(manifest, headers, want, chunk, index, len(own))
        pieces.setdefault(index, []).append(piece)
        own.append(array)
    return [_file_plan(manifest, headers, index, pieces[index], arrays[index]) for index in pieces]


def _piece(
    manifest: Manifest, headers: Headers, want: Want, chunk: Box, index: int, target: int
) -> tuple[Piece, Array]:
    where = manifest.file_name(index)
    start = headers[index].chunk(want.record, chunk, where=where).start
    size = itemsize(want.record.dtype)
    if chunk == want.box:
        whole = Box.whole(chunk.shape)
        array = want.array
        return _made(target, start, chunk.shape, whole, size, array), array
    shared = chunk.intersect(want.box)
    if shared is None:
        raise CorruptError(f"chunk {chunk} of {want.record.key!r} does not meet {want.box}")
    array = want.array[(*shared.relative_to(want.box.start).slices(), ...)]
    inside = shared.relative_to(chunk.start)
    return _made(target, start, chunk.shape, inside, size, array), array


def _made(
    target: int, start: int, shape: tuple[int, ...], box: Box, size: int, array: Array
) -> Piece:
    return Piece(target, start, shape, box, size, bool(array.flags.c_contiguous))


def _file_plan(
    manifest: Manifest,
    headers: Headers,
    index: int,
    pieces: Sequence[Piece],
    arrays: list[Array],
) -> FilePlan:
    record = manifest.files[index]
    reads = plan_reads(
        pieces,
        data_start=record.header_nbytes,
        file_nbytes=record.nbytes,
        block_nbytes=headers[index].block_nbytes,
        window_nbytes=WINDOW_NBYTES,
        max_gap_nbytes=MAX_GAP_NBYTES,
    )
    return FilePlan(index, headers.open_file(index), reads, arrays)


def fill(
    storage: CanReadInto,
    manifest: Manifest,
    headers: Headers,
    wants: Sequence[Want],
    *,
    threads: int,
    verify: bool,
    meter: Meter,
) -> int:
    """Fill the arrays of all wants; the number of bytes read."""
    plans = plan_load(manifest, headers, wants, threads=threads)
    jobs = [FileReads(plan.file, plan.reads, plan.arrays) for plan in plans]
    meter.expect(sum(plan.nbytes for plan in plans))
    reader = Reader(storage, threads=threads, verify=verify, meter=meter)
    return reader.run(jobs)

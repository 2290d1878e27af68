"""How do wanted boxes of stored tensors reach memory? Torch-free."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from shardkeep.boxes import Box
from shardkeep.errors import CorruptError
from shardkeep.manifest import Manifest, TensorRecord, itemsize
from shardkeep.plan.reads import (
    DIRECT_NBYTES,
    DirectRead,
    Piece,
    Read,
    plan_reads,
    spanned_nbytes,
)
from shardkeep.plan.sharing import Stake
from shardkeep.plan.spans import plan_spans
from shardkeep.storage import CanMap
from shardkeep.storage.protocols import CanFetch
from shardkeep.transfer.collecting import gc_paused
from shardkeep.transfer.opened import Opened, Places
from shardkeep.transfer.progress import Meter
from shardkeep.transfer.read import Array, FileReads, OpenFile, Reader, nbytes_of

WINDOW_NBYTES = 8 * 1024 * 1024
MAX_GAP_NBYTES = 512 * 1024
# So much memory is taken before anything but the manifest has been looked at.
_BELIEVED_NBYTES = 4 * 1024 * 1024

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


def require_stored(
    opened: Opened, asked: Sequence[tuple[TensorRecord, Box]], *, threads: int
) -> None:
    """Raise CorruptError unless files can hold what the manifest claims; before memory is taken.

    Chunks do not overlap, so all of them together are no larger than their files.
    """
    claimed = sum([box.numel * itemsize(record.dtype) for record, box in asked])
    if claimed <= _BELIEVED_NBYTES:
        return
    indices = files_of(opened.manifest, alike_of(asked))
    # A header is only kept if its file has the size that the manifest says.
    opened.places.fetch(indices, threads=threads)
    there = sum([opened.manifest.files.nbytes[index] for index in indices])
    if claimed > there:
        raise CorruptError(
            f"{opened.storage.location} claims {claimed} bytes of tensors in files of {there} "
            "bytes: it is damaged, or was forged; take another copy"
        )


Alike = Sequence[tuple[TensorRecord, Box, int]]
"""Of tensors that are stored alike and of which the same box is asked: one, and how many."""


def alike_of(asked: Iterable[tuple[TensorRecord, Box]]) -> Alike:
    """What is asked, in few kinds: there may be many thousand tensors."""
    counts: dict[object, int] = {}
    first: dict[object, tuple[TensorRecord, Box]] = {}
    for record, box in asked:
        # Boxes of tensors alike are one object: by its identity it is found much faster.
        kind = record.grid, record.dtype, record.shape, id(box)
        if kind in counts:
            counts[kind] += 1
        else:
            counts[kind] = 1
            first[kind] = record, box
    return [(*first[kind], count) for kind, count in counts.items()]


def files_of(manifest: Manifest, alike: Alike) -> list[int]:
    """The files in which boxes of stored tensors lie, by index."""
    found = [index for record, box, _ in alike for _, index in manifest.chunks_meeting(record, box)]
    return list(dict.fromkeys(found))


def stake_of(manifest: Manifest, alike: Alike) -> Stake:
    """What a rank that wants these boxes of stored tensors would read, and of how much.

    A tensor of which it wants several boxes counts as often.
    """
    wanted = read = whole = 0
    for record, box, count in alike:
        size = itemsize(record.dtype)
        wanted += count * size * box.numel
        whole += count * size * math.prod(record.shape)
        for chunk, _ in manifest.chunks_meeting(record, box):
            shared = chunk.intersect(box)
            if shared is not None:
                inside = shared.relative_to(chunk.start)
                read += count * spanned_nbytes(chunk.shape, inside, size)
    return Stake(wanted, read, whole)


def plan_load(
    opened: Opened, wants: Sequence[Want], *, threads: int, rule: ReadRule | None = None
) -> Iterator[FilePlan]:
    """What to read of which file, one file after the other; reads their headers, but no data.

    By a rule for the storage, unless one is given.
    """
    asked: dict[int, list[_Asked]] = {}
    with gc_paused():
        for want, found in zip(wants, _meetings_of(opened.manifest, wants), strict=True):
            for meeting in found:
                asked.setdefault(meeting.index, []).append((want, meeting))
    opened.places.fetch(asked, threads=threads)
    known = rule or ReadRule.of(opened.storage)
    for index, of_file in asked.items():
        with gc_paused():
            plan = _file_plan(opened.places, index, of_file, known)
        yield plan


@dataclass(frozen=True, slots=True)
class _Meeting:
    """What a wanted box and a stored chunk share."""

    chunk: Box
    index: int
    """Of the file."""
    shape: tuple[int, ...]
    """Of the chunk."""
    inside: Box
    """Relative to the chunk."""
    place: tuple[Any, ...] | None
    """Where in the wanted box; None if that is all of it."""


def _meetings_of(manifest: Manifest, wants: Sequence[Want]) -> Iterator[list[_Meeting]]:
    """The chunks that each want meets; of many alike, found once."""
    known: dict[object, list[_Meeting]] = {}
    for want in wants:
        record, box = want.record, want.box
        alike = record.grid, record.shape, box.start, box.stop
        if alike not in known:
            chunks = manifest.chunks_meeting(record, box)
            known[alike] = [_meeting(record, box, *chunk) for chunk in chunks]
        yield known[alike]


def _meeting(record: TensorRecord, box: Box, chunk: Box, index: int) -> _Meeting:
    shared = chunk.intersect(box) if chunk != box else box
    if shared is None:
        raise CorruptError(f"chunk {chunk} of {record.key!r} does not meet {box}")
    place = (*shared.relative_to(box.start).slices(), ...) if shared != box else None
    return _Meeting(chunk, index, chunk.shape, shared.relative_to(chunk.start), place)


_Asked = tuple[Want, _Meeting]
"""What is wanted of one file."""


def _pieces(places: Places, index: int, asked: Sequence[_Asked]) -> tuple[list[Piece], list[Array]]:
    """The pieces of one file, and the arrays that they fill, by target."""
    pieces: list[Piece] = []
    arrays: list[Array] = []
    for (want, meeting), start in zip(asked, _starts(places, index, asked), strict=True):
        array = want.array if meeting.place is None else want.array[meeting.place]
        size, is_row = itemsize(want.record.dtype), bool(array.flags.c_contiguous)
        pieces.append(Piece(len(arrays), start, meeting.shape, meeting.inside, size, is_row))
        arrays.append(array)
    return pieces, arrays


def _starts(places: Places, index: int, asked: Sequence[_Asked]) -> list[int]:
    """Where the chunk of each starts; looked up together for tensors alike."""
    alike: dict[object, list[int]] = {}
    for number, (want, meeting) in enumerate(asked):
        # Meetings alike are one object: by its identity it is found much faster.
        alike.setdefault((id(meeting), want.record.dtype), []).append(number)
    starts = [0] * len(asked)
    for numbers in alike.values():
        records = [asked[number][0].record for number in numbers]
        chunk = asked[numbers[0]][1].chunk
        for number, start in zip(numbers, places.starts(index, records, chunk), strict=True):
            starts[number] = start
    return starts


@dataclass(frozen=True, slots=True)
class ReadRule:
    """How reads of a storage are cut and joined."""

    window_nbytes: int = WINDOW_NBYTES
    max_gap_nbytes: int = MAX_GAP_NBYTES
    in_spans: bool = False
    """Whether everything is fetched in spans: each request to the storage has its price."""

    @property
    def direct_nbytes(self) -> int:
        """A run of so many bytes that lands in one piece of memory needs no window."""
        return 1 if self.in_spans else DIRECT_NBYTES

    @classmethod
    def of(cls, storage: object) -> ReadRule:
        """The rule for a storage; for one at a distance, by what its requests cost."""
        if not isinstance(storage, CanFetch):
            return cls()
        gap = storage.costs().max_gap_nbytes
        # Long enough that most of its time a request brings bytes, yet many for one file.
        window = min(max(4 * gap, WINDOW_NBYTES), 4 * WINDOW_NBYTES)
        return cls(window, min(max(gap, MAX_GAP_NBYTES), window), in_spans=True)


def _file_plan(places: Places, index: int, asked: Sequence[_Asked], rule: ReadRule) -> FilePlan:
    pieces, arrays = _pieces(places, index, asked)
    # Not before: where pieces seem to lie may make the file longer.
    file = places.open_file(index)
    shape = {
        "data_start": file.data_start,
        "file_nbytes": file.nbytes,
        "block_nbytes": file.block_nbytes,
        "max_gap_nbytes": rule.max_gap_nbytes,
    }
    reads = plan_reads(
        pieces, window_nbytes=rule.window_nbytes, direct_nbytes=rule.direct_nbytes, **shape
    )
    if rule.in_spans:
        runs = [read for read in reads if isinstance(read, DirectRead)]
        spans = plan_spans(runs, span_nbytes=rule.window_nbytes, **shape)
        windows: list[Read] = [read for read in reads if not isinstance(read, DirectRead)]
        reads = sorted([*windows, *spans], key=lambda read: read.start)
    return FilePlan(index, file, reads, arrays)


def map_chunk(opened: Opened, record: TensorRecord, box: Box, index: int) -> Array | None:
    """A stored chunk in the storage's own memory, as bits, unchecked; None if it cannot map."""
    if not isinstance(opened.storage, CanMap):
        return None
    entry = opened.places.chunk(index, record, box)
    file = np.frombuffer(opened.storage.map(opened.manifest.file_name(index)), np.uint8)
    if entry.stop > file.nbytes:
        # Some formats store items in another order: what is shown of them lies in no file.
        return None
    bits = file[entry.start : entry.stop].view(BIT_DTYPES[itemsize(record.dtype)])
    return bits.reshape(box.shape)


def fill(
    opened: Opened,
    wants: Sequence[Want],
    *,
    threads: int,
    verify: bool,
    meter: Meter,
    more: Iterable[FilePlan] = (),
) -> int:
    """Fill the arrays of all wants, and what else was planned; the number of bytes read.

    The first files are read while the next ones are planned.
    """
    plans = chain(more, plan_load(opened, wants, threads=threads))
    reader = Reader(opened.storage, threads=threads, verify=verify, meter=meter)
    return reader.run(_jobs(plans, meter))


def _jobs(plans: Iterable[FilePlan], meter: Meter) -> Iterator[FileReads]:
    for plan in plans:
        meter.expect(plan.nbytes)
        yield FileReads(plan.file, plan.reads, plan.arrays)

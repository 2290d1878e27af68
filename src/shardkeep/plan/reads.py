"""Which byte ranges of which file are read, and where do they go?

Blocks are read whole, because a digest speaks for a whole block. A large run that lands in one
piece of memory is read straight into it; the rest is read in windows and copied from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from shardkeep.boxes import Box, ByteRanges, byte_ranges

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

# A run of at least this many bytes is worth a read of its own, straight into its destination.
DIRECT_NBYTES = 512 * 1024


# These are made by the 1,000s for each file: a Struct is many times as fast as a dataclass.
class Piece(msgspec.Struct, frozen=True, gc=False):
    """A box of a stored chunk that is wanted.

    `target` numbers the destination among the caller's; it has the box's shape.
    """

    target: int
    chunk_start: int
    """Where in the file the chunk starts."""
    chunk_shape: tuple[int, ...]
    box: Box
    """Relative to the chunk."""
    itemsize: int
    is_contiguous: bool
    """Whether the destination lies in one piece."""


class Copy(msgspec.Struct, frozen=True, gc=False):
    """A strided box within a window that goes to a box of a target."""

    target: int
    place: Box
    """Where in the target."""
    start: int
    """Byte of the file at which the box's first cell lies."""
    stop: int
    """Behind the last byte of its last cell."""
    strides: tuple[int, ...]
    """In bytes."""


class DirectRead(msgspec.Struct, frozen=True, gc=False):
    """Bytes of a file that land in a target as they are."""

    target: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class WindowRead:
    """Bytes of a file, whole blocks, from which boxes are copied."""

    start: int
    stop: int
    copies: tuple[Copy, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of a file that go to the bytes of a target from `at` on."""

    target: int
    start: int
    stop: int
    at: int


@dataclass(frozen=True, slots=True)
class SpanRead:
    """Bytes of a file, whole blocks, of which parts go to targets as they are."""

    start: int
    stop: int
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Runs:
    """Many small runs of a file's bytes that go to memory as they are: columns, by place."""

    starts: Ints
    stops: Ints
    addresses: Ints
    memory: object
    """What keeps it there."""


@dataclass(frozen=True, slots=True)
class ScatterRead:
    """Bytes of a file, whole blocks, of which runs go to memory; those of other reads, too."""

    start: int
    stop: int
    runs: Runs


Read = DirectRead | WindowRead | SpanRead | ScatterRead


def plan_reads(
    pieces: Sequence[Piece],
    *,
    data_start: int,
    file_nbytes: int,
    block_nbytes: int,
    window_nbytes: int,
    max_gap_nbytes: int,
    direct_nbytes: int = DIRECT_NBYTES,
) -> list[Read]:
    """The reads of one file that fill all pieces, in the order of the file.

    Windows span at most about `window_nbytes` and bridge gaps of at most `max_gap_nbytes`. Runs of
    at least `direct_nbytes` that land in one piece of memory are read by themselves, with what
    little lies between two of them.
    """
    runs: list[DirectRead] = []
    little: list[Piece] = []
    copies: list[Copy] = []
    known: dict[object, tuple[ByteRanges, Sequence[Need]]] = {}
    # Gaps that a window bridges anyway need no part of their own.
    gap = max(2 * block_nbytes, max_gap_nbytes + 1)
    for piece in pieces:
        if 0 in piece.chunk_shape:
            continue
        if piece.box.shape == piece.chunk_shape:
            # The usual case: one run, no arithmetic on boxes.
            if not piece.is_contiguous:
                copies.append(_whole_copy(piece))
            elif _whole_nbytes(piece) >= direct_nbytes:
                runs.append(_whole_run(piece))
            else:
                little.append(piece)
            continue
        # Boxes of pieces alike are one object: by its identity it is found much faster.
        alike = piece.chunk_shape, id(piece.box), piece.itemsize
        ranges, needs = known.get(alike) or known.setdefault(
            alike, _needs(piece, gap, window_nbytes)
        )
        at = piece.chunk_start
        if ranges.run_count == 1 and piece.is_contiguous and ranges.run_nbytes >= direct_nbytes:
            start = at + ranges.first
            runs.append(DirectRead(piece.target, start, start + ranges.run_nbytes))
            continue
        copies += [
            Copy(piece.target, place, at + first, at + last, strides)
            for first, last, place, strides in needs
        ]
    beside, apart = _beside(little, runs, direct_nbytes)
    copies.extend(map(_whole_copy, apart))
    copies.sort(key=lambda copy: (copy.start, copy.stop))
    blocks = _Blocks(data_start, file_nbytes, block_nbytes)
    windows = _windows(copies, blocks, window_nbytes, max_gap_nbytes)
    return sorted([*runs, *map(_whole_run, beside), *windows], key=lambda read: read.start)


def _whole_nbytes(piece: Piece) -> int:
    return piece.box.numel * piece.itemsize


def _whole_run(piece: Piece) -> DirectRead:
    start = piece.chunk_start
    return DirectRead(piece.target, start, start + _whole_nbytes(piece))


def _whole_copy(piece: Piece) -> Copy:
    start, strides = piece.chunk_start, _strides(piece.chunk_shape, piece.itemsize)
    return Copy(piece.target, piece.box, start, start + _whole_nbytes(piece), strides)


def _beside(
    little: Sequence[Piece], runs: Sequence[DirectRead], limit_nbytes: int
) -> tuple[list[Piece], Sequence[Piece]]:
    """Small chunks that lie beside runs, fewer bytes of them than the limit, and the others.

    A window for each would read the blocks at its ends twice, and end the run.
    """
    if not little or not runs:
        return [], little
    ends = {run.start for run in runs} | {run.stop for run in runs}
    found: tuple[list[Piece], list[Piece]] = [], []
    for row in _rows(sorted(little, key=lambda piece: piece.chunk_start)):
        start, stop = row[0].chunk_start, row[-1].chunk_start + _whole_nbytes(row[-1])
        is_beside = not ends.isdisjoint((start, stop)) and stop - start < limit_nbytes
        found[0 if is_beside else 1].extend(row)
    return found


def _rows(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Whole chunks that follow each other without a gap."""
    row: list[Piece] = []
    stop = -1
    for piece in pieces:
        if row and piece.chunk_start != stop:
            yield row
            row = []
        row.append(piece)
        stop = piece.chunk_start + _whole_nbytes(piece)
    yield row


class Need(NamedTuple):
    """A part of a piece, and which bytes of its chunk hold it: the first, and behind the last."""

    first: int
    last: int
    place: Box
    """Relative to the piece."""
    strides: tuple[int, ...]


def _needs(piece: Piece, gap_nbytes: int, window_nbytes: int) -> tuple[ByteRanges, Sequence[Need]]:
    ranges = byte_ranges(piece.chunk_shape, piece.box, piece.itemsize)
    if not ranges.run_count:
        return ranges, ()
    return ranges, list(window_needs(piece, ranges, gap_nbytes, window_nbytes))


def window_needs(
    piece: Piece, ranges: ByteRanges, gap_nbytes: int, window_nbytes: int
) -> Iterator[Need]:
    """The piece in parts whose spans fit a window, and which leave out gaps that are worth it."""
    strides = _strides(piece.chunk_shape, piece.itemsize)
    sparse = _has_gaps(piece, ranges, strides, gap_nbytes)
    limit = ranges.run_nbytes if sparse else window_nbytes
    for part in _parts(piece.box, strides, piece.itemsize, limit):
        first, last = _span(part, strides, piece.itemsize)
        yield Need(first, last, part.relative_to(piece.box.start), strides)


def _has_gaps(piece: Piece, ranges: ByteRanges, strides: Sequence[int], gap_nbytes: int) -> bool:
    """Whether between two runs there are so many bytes, or more, that need not be read."""
    if ranges.run_count == 1:
        return False
    step = min(
        stride
        for stride, side in zip(strides, piece.box.shape, strict=True)
        if side > 1 and stride > ranges.run_nbytes
    )
    return step - ranges.run_nbytes >= gap_nbytes


def _parts(box: Box, strides: Sequence[int], itemsize: int, limit_nbytes: int) -> Iterator[Box]:
    """Boxes that tile `box`, cut along leading dims until each spans at most the limit."""
    first, last = _span(box, strides, itemsize)
    dim = next((d for d, side in enumerate(box.shape) if side > 1), None)
    if last - first <= limit_nbytes or dim is None:
        yield box
        return
    rows = max(1, limit_nbytes // strides[dim])
    for start in range(box.start[dim], box.stop[dim], rows):
        stop = min(start + rows, box.stop[dim])
        cut = Box(
            (*box.start[:dim], start, *box.start[dim + 1 :]),
            (*box.stop[:dim], stop, *box.stop[dim + 1 :]),
        )
        if stop - start == 1:
            yield from _parts(cut, strides, itemsize, limit_nbytes)
        else:
            yield cut


@lru_cache(maxsize=4096)
def _strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    strides: list[int] = []
    step = itemsize
    for side in reversed(shape):
        strides.append(step)
        step *= side
    return tuple(reversed(strides))


def _span(box: Box, strides: Sequence[int], itemsize: int) -> tuple[int, int]:
    """The bytes from the box's first cell to behind its last, relative to the chunk."""
    first = sum(a * stride for a, stride in zip(box.start, strides, strict=True))
    last = sum((b - 1) * stride for b, stride in zip(box.stop, strides, strict=True))
    return first, last + itemsize


def spanned_nbytes(chunk_shape: tuple[int, ...], box: Box, itemsize: int) -> int:
    """The bytes from the first to the last that a box, relative to its chunk, has of it.

    >>> spanned_nbytes((4, 8), Box((0, 0), (4, 2)), 1)
    26
    """
    if not box.numel:
        return 0
    first, last = _span(box, _strides(chunk_shape, itemsize), itemsize)
    return last - first


@dataclass(frozen=True, slots=True)
class _Blocks:
    data_start: int
    file_nbytes: int
    block_nbytes: int

    def floor(self, byte: int) -> int:
        return byte - (byte - self.data_start) % self.block_nbytes

    def ceil(self, byte: int) -> int:
        return min(byte + (self.data_start - byte) % self.block_nbytes, self.file_nbytes)


def _windows(
    copies: Sequence[Copy], blocks: _Blocks, window_nbytes: int, max_gap_nbytes: int
) -> Iterator[WindowRead]:
    group: list[Copy] = []
    start = stop = 0
    for copy in copies:
        first, last = blocks.floor(copy.start), blocks.ceil(copy.stop)
        joined = max(stop, last) - start <= window_nbytes and first - stop <= max_gap_nbytes
        if group and not joined:
            yield WindowRead(start, stop, tuple(group))
            group = []
        if not group:
            start, stop = first, last
        group.append(copy)
        stop = max(stop, last)
    if group:
        yield WindowRead(start, stop, tuple(group))

"""How many bytes are read, and in how many requests, when many tensors alike are loaded?

What `plan_reads` and `plan_spans` would read, as numbers alone: nothing is filled from it. A
model has many tensors, but few kinds of them, and of a kind only the places in the file differ.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from shardkeep.boxes import byte_ranges
from shardkeep.plan.reads import Piece, window_needs

Ints = NDArray[np.int64]
Pair = tuple[Ints, Ints]
"""Starts and stops."""

Way = Literal["direct", "little", "window"]
"""By itself, straight into its place; the same if it lies beside such a run; in a window."""

_EMPTY: Pair = np.empty(0, np.int64), np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Alike:
    """The same piece of many chunks of one file."""

    piece: Piece
    """As if the chunk were at the start of the file."""
    chunk_starts: Ints
    """Where each of the chunks really starts."""


@dataclass(frozen=True, slots=True)
class FileShape:
    """Where the blocks of a file are, and how reads of it are cut and joined."""

    data_start: int
    nbytes: int
    block_nbytes: int
    window_nbytes: int
    max_gap_nbytes: int
    direct_nbytes: int
    in_spans: bool

    def floor(self, bytes_: Ints) -> Ints:
        return bytes_ - (bytes_ - self.data_start) % self.block_nbytes

    def ceil(self, bytes_: Ints) -> Ints:
        return np.minimum(bytes_ + (self.data_start - bytes_) % self.block_nbytes, self.nbytes)


@dataclass(frozen=True, slots=True)
class Ranges:
    """The byte ranges of a file that are read, each by a request, in the order of the file."""

    starts: Ints
    stops: Ints
    nbytes: int
    """What is read, whole blocks."""
    scratch_nbytes: int
    """Of the longest that does not land where it belongs by itself."""


def plan_ranges(many: Sequence[Alike], file: FileShape) -> Ranges:
    """What is read of a file that holds all of these."""
    needs = _spread(many, file)
    beside, apart = _beside(needs["little"], needs["direct"], file.direct_nbytes)
    direct = _joined(needs["direct"], beside)
    # Windows and spans are whole blocks; runs that are read into place are widened as they are.
    windows = _pairs(_windows(*_joined(needs["window"], apart), file))
    if file.in_spans:
        spans = _pairs(_spans(*direct, file))
        scratch, alone = _joined(windows, spans), _EMPTY
    else:
        scratch, alone = windows, direct
    starts, stops = _joined(scratch, alone)
    order = np.argsort(starts, kind="stable")
    return Ranges(
        starts[order],
        stops[order],
        int((file.ceil(stops) - file.floor(starts)).sum()),
        int((scratch[1] - scratch[0]).max(initial=0)),
    )


def _spread(many: Sequence[Alike], file: FileShape) -> dict[Way, Pair]:
    """What is needed of the file, by the way in which it is read."""
    found: dict[Way, list[Pair]] = {"direct": [_EMPTY], "little": [_EMPTY], "window": [_EMPTY]}
    for one in many:
        for way, start, stop in _needs(one.piece, file):
            found[way].append((one.chunk_starts + start, one.chunk_starts + stop))
    return {way: _joined(*pairs) for way, pairs in found.items()}


def _needs(piece: Piece, file: FileShape) -> Iterator[tuple[Way, int, int]]:
    """The spans that a piece needs, as `plan_reads` tells them apart."""
    if 0 in piece.chunk_shape:
        return
    if piece.box.shape == piece.chunk_shape:
        nbytes = piece.box.numel * piece.itemsize
        within = "direct" if nbytes >= file.direct_nbytes else "little"
        yield within if piece.is_contiguous else "window", 0, nbytes
        return
    ranges = byte_ranges(piece.chunk_shape, piece.box, piece.itemsize)
    if ranges.run_count == 1 and piece.is_contiguous and ranges.run_nbytes >= file.direct_nbytes:
        yield "direct", ranges.first, ranges.first + ranges.run_nbytes
    elif ranges.run_count:
        gap_nbytes = max(2 * file.block_nbytes, file.max_gap_nbytes + 1)
        for need in window_needs(piece, ranges, gap_nbytes, file.window_nbytes):
            yield "window", need.first, need.last


def _beside(little: Pair, direct: Pair, limit_nbytes: int) -> tuple[Pair, Pair]:
    """Rows of small chunks that lie beside runs and are read with them, and the other chunks."""
    if not little[0].size or not direct[0].size:
        return _EMPTY, little
    starts, stops = _sorted(*little)
    firsts = np.flatnonzero(np.r_[True, starts[1:] != stops[:-1]])
    lengths = np.diff(np.r_[firsts, len(starts)])
    row_starts, row_stops = starts[firsts], stops[firsts + lengths - 1]
    ends = np.concatenate(direct)
    touches = np.isin(row_starts, ends) | np.isin(row_stops, ends)
    is_beside = np.repeat(touches & (row_stops - row_starts < limit_nbytes), lengths)
    return (starts[is_beside], stops[is_beside]), (starts[~is_beside], stops[~is_beside])


def _joined(*pairs: Pair) -> Pair:
    return np.concatenate([a for a, _ in pairs]), np.concatenate([b for _, b in pairs])


def _pairs(found: Iterator[tuple[int, int]]) -> Pair:
    numbers = np.array(list(found), np.int64).reshape(-1, 2)
    return numbers[:, 0], numbers[:, 1]


def _sorted(starts: Ints, stops: Ints) -> Pair:
    order = np.lexsort((stops, starts))
    return starts[order], stops[order]


def _windows(starts: Ints, stops: Ints, file: FileShape) -> Iterator[tuple[int, int]]:
    starts, stops = _sorted(starts, stops)
    start = stop = -1
    for first, last in zip(file.floor(starts).tolist(), file.ceil(stops).tolist(), strict=True):
        if start < 0:
            start, stop = first, last
        elif max(stop, last) - start > file.window_nbytes or first - stop > file.max_gap_nbytes:
            yield start, stop
            start, stop = first, last
        elif last > stop:
            stop = last
    if start >= 0:
        yield start, stop


def _spans(starts: Ints, stops: Ints, file: FileShape) -> Iterator[tuple[int, int]]:
    """Whole blocks in spans of a window's length, without those that nobody wants a byte of."""
    if not starts.size:
        return
    starts, stops = _sorted(starts, stops)
    firsts, reached = file.floor(starts), np.maximum.accumulate(file.ceil(stops))
    cuts = np.flatnonzero(firsts[1:] - reached[:-1] > file.max_gap_nbytes) + 1
    step = max(file.block_nbytes, file.window_nbytes - file.window_nbytes % file.block_nbytes)
    for low, high in zip([0, *cuts.tolist()], [*cuts.tolist(), len(firsts)], strict=True):
        wanted, upto = starts[low:high].tolist(), np.maximum.accumulate(stops[low:high]).tolist()
        start, stop = int(firsts[low]), int(reached[high - 1])
        for at in range(start, stop, step):
            end = min(at + step, stop)
            before = bisect_left(wanted, end)
            if before and upto[before - 1] > at:
                yield at, end

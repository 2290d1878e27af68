"""What would it cost to read these boxes? Planned in full, without reading tensor data.

Tensors that are stored alike are planned together, so that 100,000 of them take a moment.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from shardkeep.boxes import Box, byte_ranges
from shardkeep.errors import CorruptError
from shardkeep.manifest import TensorRecord, itemsize
from shardkeep.plan.many_reads import Alike, FileShape, Ints, Ranges, plan_ranges
from shardkeep.plan.reads import Piece
from shardkeep.transfer.load import ReadRule
from shardkeep.transfer.opened import Opened

Kind = tuple[Sequence[TensorRecord], Box]
"""Tensors of one dtype, shape and grid, and the box that is wanted of each."""


@dataclass(frozen=True, slots=True)
class ReadCost:
    """What one rank would read."""

    nbytes_wanted: int
    nbytes_read: int
    """Whole blocks, since a digest speaks for a whole block."""
    requests: int
    files: int
    scratch_nbytes: int
    """Memory beside the state, for each thread."""


def cost_of(opened: Opened, boxes: Iterable[tuple[TensorRecord, Box]], *, threads: int) -> ReadCost:
    """The cost of reading boxes of stored tensors, each to memory of its own."""
    kinds = kinds_of(boxes)
    ranges = CostPlanner(opened, threads=threads).ranges_of(kinds)
    return total_cost(kinds, ranges.values())


def kinds_of(boxes: Iterable[tuple[TensorRecord, Box]]) -> list[Kind]:
    """The boxes, those of tensors that are stored alike together."""
    found: dict[object, tuple[list[TensorRecord], Box]] = {}
    for record, box in boxes:
        alike = record.grid, record.shape, record.dtype, box.start, box.stop
        if alike not in found:
            found[alike] = [], box
        found[alike][0].append(record)
    return list(found.values())


def total_cost(kinds: Iterable[Kind], found: Collection[Ranges]) -> ReadCost:
    """What it costs one rank to read the ranges that give it these boxes."""
    return ReadCost(
        nbytes_wanted=sum(len(records) * _nbytes(records[0], box) for records, box in kinds),
        nbytes_read=sum(one.nbytes for one in found),
        requests=sum(len(one.starts) for one in found),
        files=len(found),
        scratch_nbytes=max((one.scratch_nbytes for one in found), default=0),
    )


class CostPlanner:
    """Plans the reads of several ranks; where a chunk lies is looked up once for all of them."""

    def __init__(self, opened: Opened, *, threads: int) -> None:
        self._opened = opened
        self._threads = threads
        self._rule = ReadRule.of(opened.storage)
        # With the records, so that no others can have their id.
        self._starts: dict[tuple[int, int, Box], tuple[Sequence[TensorRecord], Ints]] = {}

    def ranges_of(self, kinds: Sequence[Kind]) -> dict[int, Ranges]:
        """What is read of each file, by its index; reads headers, but no data."""
        manifest, many = self._opened.manifest, dict[int, list[Alike]]()
        met = [
            (records, box, chunk, index)
            for records, box in kinds
            for chunk, index in manifest.chunks_meeting(records[0], box)
        ]
        indices = sorted({index for _, _, _, index in met})
        self._opened.places.fetch(indices, threads=self._threads)
        for records, box, chunk, index in met:
            starts = self._starts_of(records, chunk, index)
            many.setdefault(index, []).append(Alike(_piece(records[0], box, chunk), starts))
        return {index: plan_ranges(many[index], self._shape(index)) for index in indices}

    def _starts_of(self, records: Sequence[TensorRecord], chunk: Box, index: int) -> Ints:
        """Where in the file this chunk of each of the tensors starts."""
        known = id(records), index, chunk
        if known not in self._starts:
            starts = self._opened.places.starts(index, records, chunk)
            self._starts[known] = records, np.array(starts, np.int64)
        return self._starts[known][1]

    def _shape(self, index: int) -> FileShape:
        file, rule = self._opened.places.open_file(index), self._rule
        return FileShape(
            file.data_start,
            file.nbytes,
            file.block_nbytes,
            rule.window_nbytes,
            rule.max_gap_nbytes,
            rule.direct_nbytes,
            rule.in_spans,
        )


def _piece(record: TensorRecord, box: Box, chunk: Box) -> Piece:
    """What is wanted of a chunk, as if it were the first of its file."""
    shared = chunk.intersect(box)
    if shared is None:
        raise CorruptError(f"chunk {chunk} of {record.key!r} does not meet {box}")
    is_row = not byte_ranges(box.shape, shared.relative_to(box.start), itemsize=1).loops
    inside = shared.relative_to(chunk.start)
    return Piece(0, 0, chunk.shape, inside, itemsize(record.dtype), is_row)


def _nbytes(record: TensorRecord, box: Box) -> int:
    return box.numel * itemsize(record.dtype)

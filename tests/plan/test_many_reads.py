"""Numbers for many tensors alike are those of the reads that are planned one by one."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, strategies as st

from shardkeep.plan.many_reads import Alike, FileShape, plan_ranges
from shardkeep.plan.reads import DirectRead, Piece, Read, plan_reads
from shardkeep.plan.spans import plan_spans
from shardkeep.testing.box_strategies import boxes_in, shapes

DATA_START = 128


def one_by_one(pieces: list[Piece], file: FileShape) -> list[Read]:
    """The reads as a load plans them."""
    known = {
        "data_start": file.data_start,
        "file_nbytes": file.nbytes,
        "block_nbytes": file.block_nbytes,
        "max_gap_nbytes": file.max_gap_nbytes,
    }
    reads = plan_reads(
        pieces, window_nbytes=file.window_nbytes, direct_nbytes=file.direct_nbytes, **known
    )
    if not file.in_spans:
        return reads
    runs = [read for read in reads if isinstance(read, DirectRead)]
    spans = plan_spans(runs, span_nbytes=file.window_nbytes, **known)
    return [*(read for read in reads if not isinstance(read, DirectRead)), *spans]


@given(data=st.data())
def test_many_alike_are_read_as_if_planned_one_by_one(data: st.DataObject) -> None:
    many: list[Alike] = []
    pieces: list[Piece] = []
    at = DATA_START
    for _ in range(data.draw(st.integers(0, 5))):
        shape = data.draw(shapes(max_dims=3, max_side=9))
        piece = Piece(0, 0, shape, data.draw(boxes_in(shape)), 4, data.draw(st.booleans()))
        starts: list[int] = []
        for gap in data.draw(st.lists(st.sampled_from([0, 4, 40, 400]), max_size=6)):
            starts.append(at + gap)
            at += gap + math.prod(shape) * 4
        order = data.draw(st.permutations(starts))
        many.append(Alike(piece, np.array(order, np.int64)))
        pieces += [Piece(0, s, shape, piece.box, 4, piece.is_contiguous) for s in starts]
    file = FileShape(
        DATA_START,
        at,
        data.draw(st.sampled_from([1, 16, 64])),
        data.draw(st.sampled_from([64, 100, 256])),
        data.draw(st.sampled_from([0, 10, 64])),
        data.draw(st.sampled_from([1, 16, 1 << 20])),
        data.draw(st.booleans()),
    )
    found, reads = plan_ranges(many, file), one_by_one(pieces, file)
    pairs = list(zip(found.starts.tolist(), found.stops.tolist(), strict=True))
    assert sorted(pairs) == sorted((read.start, read.stop) for read in reads)
    assert found.starts.tolist() == sorted(found.starts.tolist())
    scratch = [one.stop - one.start for one in reads if not isinstance(one, DirectRead)]
    assert found.scratch_nbytes == max(scratch, default=0)

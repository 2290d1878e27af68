"""Do planned reads fill every wanted cell, whole blocks at a time, and little else?"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.strategies import DrawFn

from shardkeep.boxes import Box
from shardkeep.plan.reads import DirectRead, Piece, Read, WindowRead, plan_reads
from shardkeep.testing.box_strategies import boxes_in, shapes

DATA_START = 128


@st.composite
def files(draw: DrawFn) -> tuple[list[Piece], int, int]:
    """Pieces of chunks that lie one after the other, the block size and the file's."""
    at, pieces = DATA_START, list[Piece]()
    for _ in range(draw(st.integers(1, 6))):
        shape = draw(shapes(max_dims=3, max_side=9))
        size = 4
        for _ in range(draw(st.integers(0, 2))):
            box = draw(boxes_in(shape))
            pieces.append(Piece(len(pieces), at, shape, box, size, draw(st.booleans())))
        at += math.prod(shape) * size
    return pieces, draw(st.sampled_from([16, 32, 64])), at


def carry_out(plan: list[Read], pieces: list[Piece], file: np.ndarray[Any, Any]) -> list[Any]:
    """The targets, filled as the reads say, byte by byte."""
    targets = [np.full(piece.box.shape, -1, np.int32) for piece in pieces]
    for read in plan:
        if isinstance(read, DirectRead):
            assert pieces[read.target].is_contiguous
            data = file[read.start : read.stop].tobytes()
            targets[read.target].reshape(-1)[:] = np.frombuffer(data, np.int32)
            continue
        assert isinstance(read, WindowRead)
        for copy in read.copies:
            place = targets[copy.target][(*copy.place.slices(), ...)]
            for index in np.ndindex(place.shape):
                first = copy.start + sum(i * s for i, s in zip(index, copy.strides, strict=True))
                assert read.start <= first <= read.stop - 4
                place[index] = file[first : first + 4].view(np.int32)[0]
    return targets


@given(file=files(), window=st.sampled_from([64, 256]), gap=st.sampled_from([0, 64]))
@pytest.mark.parametrize("direct", [16, 1 << 20])
def test_reads_fill_all_that_is_wanted(
    direct: int, file: tuple[list[Piece], int, int], window: int, gap: int
) -> None:
    pieces, block, nbytes = file
    content = np.arange(nbytes // 4 + 1, dtype=np.int32).view(np.uint8)[:nbytes]
    plan = plan_reads(
        pieces,
        data_start=DATA_START,
        file_nbytes=nbytes,
        block_nbytes=block,
        window_nbytes=window,
        max_gap_nbytes=gap,
        direct_nbytes=direct,
    )
    for piece, target in zip(pieces, carry_out(plan, pieces, content), strict=True):
        chunk = content[piece.chunk_start :][: math.prod(piece.chunk_shape) * 4].view(np.int32)
        expected = chunk.reshape(piece.chunk_shape)[piece.box.slices()]
        np.testing.assert_array_equal(target, expected)
    assert [read.start for read in plan] == sorted(read.start for read in plan)
    for read in plan:
        assert DATA_START <= read.start < read.stop <= nbytes
        if isinstance(read, WindowRead):
            assert (read.start - DATA_START) % block == 0
            assert (read.stop - DATA_START) % block == 0 or read.stop == nbytes


def plan_one(shape: tuple[int, ...], box: Box, *, block: int = 4096) -> list[Read]:
    nbytes = 4096 + 4 * math.prod(shape)
    return plan_reads(
        [Piece(0, 4096, shape, box, 4, True)],
        data_start=4096,
        file_nbytes=nbytes,
        block_nbytes=block,
        window_nbytes=8 << 20,
        max_gap_nbytes=512 << 10,
    )


def test_a_large_chunk_is_read_straight_into_its_place() -> None:
    shape = (1024, 1024)
    assert plan_one(shape, Box.whole(shape)) == [DirectRead(0, 4096, 4096 + (4 << 20))]


def test_rows_are_one_run_and_columns_are_windows() -> None:
    shape = (4096, 1024)
    (rows,) = plan_one(shape, Box((1024, 0), (2048, 1024)))
    assert isinstance(rows, DirectRead)
    assert rows.stop - rows.start == 4 << 20
    columns = plan_one(shape, Box((0, 0), (4096, 10)))
    assert all(isinstance(read, WindowRead) for read in columns)
    assert all(read.stop - read.start <= (8 << 20) + 4096 for read in columns)


def test_blocks_that_nobody_wants_are_not_read() -> None:
    """A narrow column of very long rows: each row's block, not the whole tensor."""
    shape = (16, 1 << 20)
    plan = plan_one(shape, Box((0, 0), (16, 8)))
    assert sum(read.stop - read.start for read in plan) == 16 * 4096


def test_nothing_is_read_for_an_empty_box() -> None:
    assert plan_one((4, 4), Box((1, 1), (1, 3))) == []


def test_little_between_large_is_read_with_them() -> None:
    large, little, far = (256,), (4,), (4,)
    starts = [128, 128 + 1024, 128 + 1040, 128 + 2064 + 4096]
    pieces = [
        Piece(n, start, shape, Box.whole(shape), 4, is_contiguous=True)
        for n, (start, shape) in enumerate(zip(starts, [large, little, large, far], strict=True))
    ]
    plan = plan_reads(
        pieces,
        data_start=128,
        file_nbytes=128 + 8192,
        block_nbytes=64,
        window_nbytes=256,
        max_gap_nbytes=0,
        direct_nbytes=512,
    )
    runs = [(read.start, read.stop) for read in plan if isinstance(read, DirectRead)]
    assert runs == [(128, 1152), (1152, 1168), (1168, 2192)]
    assert isinstance(plan[-1], WindowRead)

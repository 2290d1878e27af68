"""Many small pieces of memory: each comes where it belongs, by whichever way."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, strategies as st

from shardkeep.plan.reads import Runs
from shardkeep.storage.buffers import MAX_BUFFERS_PER_CALL
from shardkeep.transfer import moving
from shardkeep.transfer.moving import copy_bytes, copy_runs

SIZES = st.lists(st.integers(0, 50), max_size=40)


def random_bytes(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, count, np.uint8)


def placed(sizes: list[int], gaps: list[bool]) -> np.ndarray:
    """Where pieces of these sizes start, some of them seven bytes behind the one before."""
    starts = np.zeros(len(sizes), np.int64)
    for n in range(1, len(sizes)):
        starts[n] = starts[n - 1] + sizes[n - 1] + 7 * gaps[n % len(gaps)]
    return starts


@pytest.mark.parametrize("may_use_kernel", [True, False])
@given(
    sizes=SIZES,
    gaps_to=st.lists(st.booleans(), min_size=1),
    gaps_from=st.lists(st.booleans(), min_size=1),
)
def test_every_piece_comes_where_it_belongs_and_nothing_else_changes(
    may_use_kernel, sizes, gaps_to, gaps_from
):
    to, come_from = placed(sizes, gaps_to), placed(sizes, gaps_from)
    source, target = random_bytes(3000), np.zeros(3000, np.uint8)
    expected = target.copy()
    for at, start, nbytes in zip(to, come_from, sizes, strict=True):
        expected[at : at + nbytes] = source[start : start + nbytes]

    with mock.patch.object(moving, "_by_kernel", moving._by_kernel if may_use_kernel else no):
        copy_bytes(
            to + target.ctypes.data, come_from + source.ctypes.data, np.array(sizes, np.int64)
        )

    assert np.array_equal(target, expected)


def no(*_):
    return False


@pytest.mark.parametrize("is_scattered", [True, False])
def test_more_pieces_than_the_kernel_takes_at_once(is_scattered):
    count = 2 * MAX_BUFFERS_PER_CALL + 5
    near, far = np.arange(count) * 3, np.arange(count)[::-1] * 5
    to, come_from = (far, near) if is_scattered else (near, far)
    source, target = random_bytes(5 * count), np.zeros(5 * count, np.uint8)

    copy_bytes(to + target.ctypes.data, come_from + source.ctypes.data, np.full(count, 3, np.int64))

    for n in (0, 1, count // 2, count - 1):
        assert np.array_equal(target[to[n] : to[n] + 3], source[come_from[n] : come_from[n] + 3])
    assert np.count_nonzero(target) == np.count_nonzero(
        source[(come_from[:, None] + np.arange(3)).ravel()]
    )


def test_where_the_kernel_refuses_or_stops_pieces_are_copied_all_the_same():
    source, target = random_bytes(800), np.zeros(800, np.uint8)
    starts = np.arange(100) * 8
    said = []

    def stops(*arguments):
        said.append(arguments)
        return -1 if len(said) == 1 else 17

    libc = mock.Mock(process_vm_readv=stops, process_vm_writev=stops)
    for _ in range(2):
        target[:] = 0
        with mock.patch.object(moving, "_libc", libc):
            copy_bytes(
                starts[::-1] + target.ctypes.data,
                starts + source.ctypes.data,
                np.full(100, 8, np.int64),
            )
        assert np.array_equal(target.reshape(100, 8)[::-1], source.reshape(100, 8))
    assert len(said) == 2


def test_pieces_reach_memory_that_nothing_has_touched_yet():
    source = random_bytes(4_000_000)
    target = np.empty(4_000_000, np.uint8)
    starts = np.arange(1000) * 4000
    runs = Runs(starts + 64, starts + 4064, target.ctypes.data + starts, target)

    copy_runs(runs, source, 64)

    assert np.array_equal(target, source)

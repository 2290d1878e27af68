"""Memory comes in huge pages for as long as that is fast."""

from __future__ import annotations

import mmap
from itertools import count
from typing import Any

import pytest
import torch

from shardkeep.state import huge_pages
from shardkeep.state.copies import Copies
from shardkeep.state.huge_pages import Pace, want_huge_pages

MIB = 2**20


class Libc:
    """Keeps what is asked of it: where, how many bytes, and what."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, int]] = []

    def madvise(self, start: Any, nbytes: Any, advice: int) -> None:
        self.asked.append((start.value, nbytes.value, advice))


@pytest.fixture
def libc(monkeypatch: pytest.MonkeyPatch) -> Libc:
    fake = Libc()
    monkeypatch.setattr(huge_pages, "_libc", fake)
    return fake


def take_time(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Every copy takes so long."""
    times = count(0.0, seconds)
    monkeypatch.setattr(huge_pages.time, "thread_time", lambda: next(times))


def test_whole_huge_pages_are_asked_for(libc: Libc) -> None:
    room = torch.empty(9 * MIB, dtype=torch.uint8)
    start = -room.data_ptr() % (2 * MIB)
    want_huge_pages(room[start + 4096 : start + 7 * MIB])
    assert libc.asked == [(room.data_ptr() + start + 2 * MIB, 4 * MIB, mmap.MADV_HUGEPAGE)]
    want_huge_pages(room[start : start + MIB])
    assert len(libc.asked) == 1


def test_after_a_slow_copy_the_rest_takes_small_pages(
    libc: Libc, monkeypatch: pytest.MonkeyPatch
) -> None:
    pace = Pace()
    one, other = torch.zeros(4 * MIB), torch.ones(4 * MIB)
    take_time(monkeypatch, 0.01)
    pace.copy(one, other)
    # A small copy says nothing, however long it took.
    take_time(monkeypatch, 9.0)
    pace.copy(one[:8], other[:8])
    assert (pace.is_slow, libc.asked) == (False, [])
    pace.copy(one, other)
    assert (pace.is_slow, libc.asked) == (True, [])
    pace.copy(one[3:-5], other[3:-5] + 1)
    ((start, nbytes, advice),) = libc.asked
    assert advice == mmap.MADV_NOHUGEPAGE
    assert start % mmap.PAGESIZE == 0
    assert start <= one[3:].data_ptr() < start + mmap.PAGESIZE
    assert start + nbytes == one[-5:].data_ptr()
    assert one.tolist()[:4] == [1.0, 1.0, 1.0, 2.0]


def test_copies_are_the_same_at_any_pace(libc: Libc, monkeypatch: pytest.MonkeyPatch) -> None:
    take_time(monkeypatch, 9.0)
    sources = [torch.arange(3 * MIB), torch.arange(2 * MIB).reshape(-1, 2).t(), torch.ones(5)]
    targets = [torch.zeros_like(source) for source in sources]
    copies = Copies(2)
    for target, source in zip(targets, sources, strict=True):
        copies.add(target, source)
    copies.run()
    assert libc.asked
    assert all(map(torch.equal, targets, sources))

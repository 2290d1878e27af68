"""Small pages are put together where the kernel can, and memory never changes by it."""

from __future__ import annotations

import ctypes
import errno
import mmap
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from shardkeep.state import huge_pages
from shardkeep.state.fresh_pages import well_placed
from shardkeep.state.huge_pages import HUGE_NBYTES, join_pages

KIB = 1024


class Libc:
    """Keeps the addresses it is asked about; answers with an error at some of them."""

    def __init__(self, errors: dict[int, int]) -> None:
        self.asked: list[int] = []
        self.errors = errors

    def madvise(self, at: Any, nbytes: Any, advice: int) -> int:
        assert (nbytes.value, advice) == (HUGE_NBYTES, 25)
        self.asked.append(at.value // HUGE_NBYTES)
        error = self.errors.get(at.value // HUGE_NBYTES, 0)
        ctypes.set_errno(error)
        return -1 if error else 0


def asked_of(monkeypatch: pytest.MonkeyPatch, *spans: tuple[float, float], **errors: int) -> Any:
    """Which huge pages are asked for, when memory lies there; all counted in huge pages."""
    libc = Libc({int(name[1:]): error for name, error in errors.items()})
    monkeypatch.setattr(huge_pages, "_libc", libc)
    monkeypatch.setattr(huge_pages.sys, "platform", "linux")
    join_pages([(int(a * HUGE_NBYTES), int(b * HUGE_NBYTES)) for a, b in spans])
    return libc.asked


@pytest.mark.parametrize(
    ("spans", "asked"),
    [
        ([(1, 3)], [1, 2]),
        ([(0.5, 2.5)], [1]),
        ([(0.5, 1.4)], []),
        ([], []),
        # What was allocated one after the other, with a little between, counts as one.
        ([(2.5, 3.9), (1, 2.49)], [1, 2]),
        ([(1, 2.5), (2.6, 4)], [1, 3]),
        # One within another.
        ([(1, 5), (2, 3)], [1, 2, 3, 4]),
    ],
)
def test_only_pages_that_lie_in_the_memory_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, spans: list[tuple[float, float]], asked: list[int]
) -> None:
    assert asked_of(monkeypatch, *spans) == asked


@pytest.mark.parametrize("error", [errno.ENOMEM, errno.EBUSY])
def test_it_ends_where_there_is_no_memory(monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    assert asked_of(monkeypatch, (1, 9), (20, 30), p3=error) == [1, 2, 3]


@pytest.mark.parametrize("error", [errno.EAGAIN, errno.EINVAL])
def test_a_page_that_cannot_be_had_now_does_not_end_it(
    monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    assert asked_of(monkeypatch, (1, 5), p2=error) == [1, 2, 3, 4]


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone is asked")
def test_memory_lies_in_huge_pages_then_and_is_what_it_was() -> None:
    room, counted = well_placed(16 * HUGE_NBYTES), torch.arange(16 * HUGE_NBYTES) % 251
    _advise(room, mmap.MADV_NOHUGEPAGE)
    room.copy_(counted)
    _advise(room, mmap.MADV_HUGEPAGE)
    # Memory of others, beside it, may be part of the same mapping.
    before = _huge_kib(room)
    join_pages([(room.data_ptr() + 1, room.data_ptr() + room.nbytes)])
    assert torch.equal(room, counted.to(torch.uint8))
    if _huge_kib(room) == before:
        pytest.skip("this kernel puts no pages together")
    assert _huge_kib(room) - before == 15 * HUGE_NBYTES // KIB


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone is asked")
def test_memory_that_is_gone_by_then_does_no_harm() -> None:
    room = mmap.mmap(-1, 8 * HUGE_NBYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    view = torch.frombuffer(room, dtype=torch.uint8)
    at = view.data_ptr()
    del view
    room.close()
    join_pages([(at, at + 8 * HUGE_NBYTES)])
    assert "AnonHugePages" in Path("/proc/self/smaps").read_text()


def _advise(room: torch.Tensor, advice: int) -> None:
    place = ctypes.c_void_p(room.data_ptr()), ctypes.c_size_t(room.nbytes)
    assert ctypes.CDLL(None).madvise(*place, advice) == 0


def _huge_kib(room: torch.Tensor) -> int:
    """How much of the mapping that a tensor lies in is in huge pages."""
    found = 0
    is_here = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        span = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
        if span:
            start, stop = int(span[1], 16), int(span[2], 16)
            is_here = start < room.data_ptr() + room.nbytes and room.data_ptr() < stop
        elif is_here and line.startswith("AnonHugePages:"):
            found += int(line.split()[1])
    return found

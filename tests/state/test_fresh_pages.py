"""Fresh memory is asked for at once, in pages of the kind that comes sooner."""

from __future__ import annotations

import mmap
import sys
from array import array
from typing import Any

import pytest
import torch

from shardkeep.state import fresh_pages
from shardkeep.state.copies import Copies
from shardkeep.state.fresh_pages import FreshPages, Way, well_placed

MIB = 2**20
POPULATE = 23


class Libc:
    """Keeps what is asked of it; its pages come in a given time, by kind. All memory is fresh."""

    def __init__(self, seconds: dict[int, float]) -> None:
        self.asked: list[tuple[int, int, int]] = []
        self.now = 0.0
        self.seconds = seconds

    def madvise(self, start: Any, nbytes: Any, advice: int) -> None:
        self.asked.append((start.value, nbytes.value, advice))
        self.now += self.seconds.get(advice, 0.0)

    def mincore(self, start: Any, nbytes: Any, there: Any) -> None:
        there._obj.value = 0

    @property
    def ways(self) -> list[Way]:
        """By what was said of each range, one after the other."""
        said: dict[int, list[int]] = {}
        number = -1
        for _, _, advice in self.asked:
            number += advice != POPULATE
            said.setdefault(number, []).append(advice)
        return [Way(tuple(a for a in one if a != mmap.MADV_NOHUGEPAGE)) for one in said.values()]


def fake(monkeypatch: pytest.MonkeyPatch, **seconds: float) -> Libc:
    """Time passes as huge and small pages are chosen, and as they are populated.

    Huge ones are what comes if nothing is said.
    """
    said = {"huge": mmap.MADV_HUGEPAGE, "small": mmap.MADV_NOHUGEPAGE, "populate": POPULATE}
    libc = Libc({said[name]: value for name, value in seconds.items()})
    monkeypatch.setattr(fresh_pages, "_libc", libc)
    monkeypatch.setattr(fresh_pages, "_are_all_huge", lambda: True)
    monkeypatch.setattr(fresh_pages.time, "perf_counter", lambda: libc.now)
    return libc


@pytest.mark.parametrize(
    ("seconds", "way"),
    [
        ({"huge": 0.1, "small": 0.2}, Way.HUGE),
        ({"huge": 0.2, "small": 0.1, "populate": 0.1}, Way.ONE_BY_ONE),
        ({"huge": 0.4, "small": 0.2, "populate": -0.1}, Way.SMALL),
    ],
)
def test_all_ways_are_tried_and_the_rest_takes_the_fastest(
    monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float], way: Way
) -> None:
    libc = fake(monkeypatch, **seconds)
    pages = FreshPages()
    one, other = torch.zeros(4 * MIB), torch.ones(4 * MIB)
    for _ in range(8):
        pages.copy(one, other)
    assert libc.ways[:3] == list(Way)
    assert libc.ways[3:] == 5 * [way]


def test_pages_that_become_slow_are_taken_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    libc = fake(monkeypatch, huge=0.1, small=0.2, populate=0.05)
    pages = FreshPages()
    one, other = torch.zeros(4 * MIB), torch.ones(4 * MIB)
    for _ in range(5):
        pages.copy(one, other)
    libc.seconds[mmap.MADV_HUGEPAGE] = 3.0
    for _ in range(4):
        pages.copy(one, other)
    assert libc.ways[3:6] == 3 * [Way.HUGE]
    assert libc.ways[6:] == 3 * [Way.ONE_BY_ONE]


@pytest.mark.parametrize(("small", "retried"), [(0.2, True), (9.0, False)])
def test_a_way_that_was_little_slower_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, small: float, retried: bool
) -> None:
    libc = fake(monkeypatch, huge=0.1, small=small)
    pages = FreshPages()
    one, other = torch.zeros(4 * MIB), torch.ones(4 * MIB)
    for _ in range(11):
        pages.copy(one, other)
    assert (libc.ways[10] is Way.SMALL) == retried
    libc.seconds[mmap.MADV_NOHUGEPAGE] = 0.0
    for _ in range(4):
        pages.copy(one, other)
    assert libc.ways[11:] == 4 * [Way.HUGE]


@pytest.mark.parametrize("nbytes", [16, 4 * MIB, 9 * MIB + 5])
def test_memory_is_as_large_as_asked_and_a_large_one_starts_with_a_huge_page(nbytes: int) -> None:
    room = well_placed(nbytes)
    assert room.nbytes == nbytes == room.untyped_storage().nbytes()
    assert nbytes < 4 * MIB or room.data_ptr() % (2 * MIB) == 0
    room.fill_(7)
    assert int(room.long().sum()) == 7 * nbytes


def test_only_pages_that_are_all_its_own_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    libc = fake(monkeypatch, huge=0.1, small=0.2)
    room = torch.zeros(8 * MIB, dtype=torch.uint8)
    part = room[100:-100]
    FreshPages().copy(part, torch.ones(len(part), dtype=torch.uint8))
    assert [advice for _, _, advice in libc.asked] == [mmap.MADV_HUGEPAGE, POPULATE]
    for start, nbytes, _ in libc.asked:
        assert start % mmap.PAGESIZE == nbytes % mmap.PAGESIZE == 0
        assert part.data_ptr() <= start
        assert start + nbytes <= part.data_ptr() + part.nbytes
    assert int(room.sum()) == len(part)


def test_small_pages_need_no_word_where_they_come_by_themselves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    libc = fake(monkeypatch, huge=9.0)
    monkeypatch.setattr(fresh_pages, "_are_all_huge", lambda: False)
    pages = FreshPages()
    one, other = torch.zeros(4 * MIB), torch.ones(4 * MIB)
    for _ in range(6):
        pages.copy(one, other)
    assert {advice for _, _, advice in libc.asked} == {mmap.MADV_HUGEPAGE, POPULATE}


def test_memory_that_has_its_pages_and_small_memory_are_just_filled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(fresh_pages, "_advise", lambda _, advice: asked.append(advice))
    pages = FreshPages()
    for numel in (16, 2 * MIB):
        target = torch.zeros(numel)
        target.fill_(3.0)
        pages.copy(target, torch.ones(numel))
        assert bool((target == 1).all())
    assert asked == []


def test_what_nobody_has_touched_is_fresh() -> None:
    # Not torch's own memory: that may have been somebody else's before.
    target = torch.frombuffer(mmap.mmap(-1, 64 * MIB, mmap.MAP_PRIVATE), dtype=torch.uint8)
    pages = FreshPages()
    assert fresh_pages._is_fresh(target)
    pages.copy(target, torch.ones_like(target))
    assert not fresh_pages._is_fresh(target)
    assert bool((target == 1).all())


def test_copies_are_the_same_whatever_pages_come(monkeypatch: pytest.MonkeyPatch) -> None:
    libc = fake(monkeypatch, huge=9.0, small=1.0)
    sources = [torch.arange(3 * MIB), torch.arange(2 * MIB).reshape(-1, 2).t(), torch.ones(5)]
    targets = [torch.zeros_like(source) for source in sources]
    copies = Copies(2)
    for target, source in zip(targets, sources, strict=True):
        copies.add(target, source)
    copies.run()
    assert libc.asked
    assert all(map(torch.equal, targets, sources))


@pytest.mark.skipif(sys.platform != "linux", reason="the call is Linux's")
def test_a_populated_buffer_has_all_its_pages_and_what_it_held() -> None:
    buffer = well_placed(8 * MIB + 100)
    buffer[5 * MIB : 5 * MIB + 50] = 7
    assert pages_there(buffer) < 8
    fresh_pages.populate(buffer)

    assert pages_there(buffer) >= buffer.nbytes // mmap.PAGESIZE
    assert int(buffer.sum()) == 7 * 50


def pages_there(buffer: torch.Tensor) -> int:
    """How many of a buffer's pages have memory."""
    start = buffer.data_ptr() // mmap.PAGESIZE
    with open("/proc/self/pagemap", "rb") as file:
        file.seek(8 * start)
        count = -(-(buffer.data_ptr() + buffer.nbytes) // mmap.PAGESIZE) - start
        entries = array("Q", file.read(8 * count))
    return sum(entry >> 63 for entry in entries)

"""Huge pages are asked for where they are at hand, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from shardkeep.state import huge_pages
from shardkeep.state.huge_pages import HUGE_PAGE_NBYTES, free_huge_nbytes, want_huge_pages

# Counts of free pieces of 4 KiB, 8 KiB, ..., 2 MiB and 4 MiB.
FREE = "Node 0, zone   Normal   7 7 7 7 7 7 7 7 7 {} {}\n"


@pytest.fixture
def free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Say what is free, and what is asked for."""
    asked: list[int] = []

    class Libc:
        def madvise(self, start, nbytes, advice):
            asked.append(nbytes.value)

    def say(two: int, four: int) -> list[int]:
        (tmp_path / "free").write_text(FREE.format(two, four))
        monkeypatch.setattr(huge_pages, "_at_hand", huge_pages._AtHand())
        return asked

    monkeypatch.setattr(huge_pages, "_libc", Libc())
    monkeypatch.setattr(huge_pages, "_FREE_PIECES", tmp_path / "free")
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    return say


def memory(pages: int) -> torch.Tensor:
    """Memory that has so many huge pages in it, wherever it begins."""
    room = torch.empty((pages + 1) * HUGE_PAGE_NBYTES, dtype=torch.uint8)
    start = -room.data_ptr() % HUGE_PAGE_NBYTES
    return room[start : start + pages * HUGE_PAGE_NBYTES]


def test_only_large_pieces_count() -> None:
    text = FREE.format(3, 2) + FREE.format(1, 0).replace("Normal", "DMA32")
    assert free_huge_nbytes(text) == (4 * 2 + 2 * 4) * 2**20
    assert free_huge_nbytes("") == 0


def test_half_of_what_is_free_is_taken_and_no_more(free) -> None:
    asked = free(4, 2)
    for pages in (3, 2, 1, 1):
        want_huge_pages(memory(pages))
    assert asked == [3 * HUGE_PAGE_NBYTES, 1 * HUGE_PAGE_NBYTES]


def test_ranks_of_a_host_share_it(free, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    asked = free(8, 0)
    want_huge_pages(memory(2))
    want_huge_pages(memory(1))
    assert asked == [HUGE_PAGE_NBYTES]


def test_where_nothing_is_told_nothing_is_asked_for(free, tmp_path: Path) -> None:
    asked = free(8, 8)
    (tmp_path / "free").unlink()
    want_huge_pages(memory(1))
    assert asked == []


def test_memory_within_one_huge_page_is_left_alone(free) -> None:
    asked = free(8, 8)
    want_huge_pages(memory(1)[4096:])
    assert asked == []

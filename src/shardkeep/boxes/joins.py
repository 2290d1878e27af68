"""How are the meetings of very many boxes found without comparing all pairs?

Space is cut at a median coordinate; boxes on both sides of the cut go to both halves. This
repeats until few pairs are left, or no cut would help, and these are compared as arrays. A pair
may come to be compared in several regions; it is reported only in the one that holds the first
cell of the intersection.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardkeep.boxes.box import Box
from shardkeep.boxes.box_arrays import Ints, boxes_of, coordinates_of
from shardkeep.boxes.meeting import Meeting

Indices = NDArray[np.intp]
Pairs = tuple[Indices, Indices]

# Comparing this many pairs at once costs about as much as one more cut.
_FEW_PAIRS = 2**13

# Pairs compared at once when no cut helps: bounds the memory of identical boxes.
_MAX_PAIRS = 2**20

# What a cut may leave of the comparisons: without a bound, cuts might go on for ever.
_WORTHWHILE = 0.95


@dataclass(frozen=True, slots=True)
class _Side:
    """One of the two lists, or what a region holds of it: coordinates and list indices."""

    starts: Ints
    stops: Ints
    indices: Indices

    def select(self, chosen: Indices | NDArray[np.bool_] | slice) -> _Side:
        return _Side(self.starts[:, chosen], self.stops[:, chosen], self.indices[chosen])

    def without_empty(self) -> _Side:
        return self.select(np.flatnonzero((self.starts < self.stops).all(axis=0)))


@dataclass(frozen=True, slots=True)
class _Region:
    """A part of space, and the boxes of both lists that reach into it."""

    start: Ints
    stop: Ints
    sources: _Side
    wanted: _Side

    @property
    def pair_count(self) -> int:
        return len(self.sources.indices) * len(self.wanted.indices)


def join(sources: Sequence[Box], wanted: Sequence[Box], ndim: int) -> list[Meeting]:
    """What `meetings` returns."""
    one, other = _side(sources, ndim), _side(wanted, ndim)
    i, j = _concatenated(list(_pairs(one, other)))
    order = np.lexsort((i, j))
    return _with_shared(one, other, i[order], j[order])


def self_join(boxes: Sequence[Box], ndim: int, limit: int) -> list[Meeting]:
    """What `find_overlaps` returns."""
    side = _side(boxes, ndim)
    found: list[Pairs] = []
    missing = limit
    for i, j in _pairs(side, side):
        found.append((i[i < j], j[i < j]))
        missing -= len(found[-1][0])
        if missing <= 0:
            break
    i, j = _concatenated(found)
    return sorted(_with_shared(side, side, i[:limit], j[:limit]))


def _side(boxes: Sequence[Box], ndim: int) -> _Side:
    return _Side(*coordinates_of(boxes, ndim), np.arange(len(boxes)))


def _concatenated(found: Sequence[Pairs]) -> Pairs:
    none = np.empty(0, np.intp)
    i, j = [none, *(i for i, _ in found)], [none, *(j for _, j in found)]
    return np.concatenate(i), np.concatenate(j)


def _with_shared(one: _Side, other: _Side, i: Indices, j: Indices) -> list[Meeting]:
    starts = np.maximum(one.starts[:, i], other.starts[:, j])
    stops = np.minimum(one.stops[:, i], other.stops[:, j])
    return list(zip(i.tolist(), j.tolist(), boxes_of(starts, stops), strict=True))


def _pairs(one: _Side, other: _Side) -> Iterator[Pairs]:
    """Yield arrays of indices of pairs that share cells: each pair once, in no order."""
    everywhere = np.zeros(len(one.starts), np.int64), np.full(len(one.starts), 2**63 - 1)
    regions = [_Region(*everywhere, one.without_empty(), other.without_empty())]
    while regions:
        region = regions.pop()
        halves = _halves(region) if region.pair_count > _FEW_PAIRS else None
        if halves is None:
            yield from _compared(region)
        else:
            regions += [half for half in halves if half.pair_count]


def _halves(region: _Region) -> tuple[_Region, _Region] | None:
    """The region cut where most comparisons are saved, or None if no cut saves enough."""
    one, other = region.sources, region.wanted
    cuts = _medians(region)[:, None]
    lower = _count(one.starts < cuts) * _count(other.starts < cuts)
    upper = _count(one.stops > cuts) * _count(other.stops > cuts)
    left = lower + upper
    dim = int(left.argmin()) if left.size else 0
    if not left.size or left[dim] > _WORTHWHILE * region.pair_count:
        return None
    return _below(region, dim, cuts[dim, 0]), _above(region, dim, cuts[dim, 0])


def _medians(region: _Region) -> Ints:
    """The median of where boxes start and stop within the region, for each dim."""
    sides, start, stop = (region.sources, region.wanted), region.start, region.stop
    ends = [np.maximum(side.starts, start[:, None]) for side in sides]
    ends += [np.minimum(side.stops, stop[:, None]) for side in sides]
    places = np.concatenate(ends, axis=1)
    middle = places.shape[1] // 2
    return np.partition(places, middle, axis=1)[:, middle]


def _count(chosen: NDArray[np.bool_]) -> Ints:
    return np.count_nonzero(chosen, axis=1).astype(np.int64)


def _below(region: _Region, dim: int, cut: np.int64) -> _Region:
    one, other, stop = region.sources, region.wanted, region.stop.copy()
    stop[dim] = cut
    chosen = one.starts[dim] < cut, other.starts[dim] < cut
    return _Region(region.start, stop, one.select(chosen[0]), other.select(chosen[1]))


def _above(region: _Region, dim: int, cut: np.int64) -> _Region:
    one, other, start = region.sources, region.wanted, region.start.copy()
    start[dim] = cut
    chosen = one.stops[dim] > cut, other.stops[dim] > cut
    return _Region(start, region.stop, one.select(chosen[0]), other.select(chosen[1]))


def _compared(region: _Region) -> Iterator[Pairs]:
    """Compare all pairs of the region, a bounded number at once."""
    wanted = region.wanted
    step = max(1, _MAX_PAIRS // max(1, len(wanted.indices)))
    for first in range(0, len(region.sources.indices), step):
        sources = region.sources.select(slice(first, first + step))
        start = np.maximum(sources.starts[:, :, None], wanted.starts[:, None, :])
        stop = np.minimum(sources.stops[:, :, None], wanted.stops[:, None, :])
        # That it starts before the region's stop is known: both boxes do.
        meets = ((start < stop) & (start >= region.start[:, None, None])).all(axis=0)
        i, j = np.nonzero(meets)
        yield sources.indices[i], wanted.indices[j]

"""Which shapes, boxes and tilings should a property be tried on?

Tilings are irregular on purpose: besides cuts from side to side they hold pinwheels, five boxes
around a centre that no straight cut separates.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import TypeVar

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from numpy.typing import NDArray

from shardkeep.boxes import Box

Ints = NDArray[np.int64]
T = TypeVar("T")


def shapes(
    min_dims: int = 0, max_dims: int = 4, max_side: int = 6, *, min_side: int = 0
) -> SearchStrategy[tuple[int, ...]]:
    """Shapes, empty and 0-dim ones among them."""
    sides = st.integers(min_side, max_side)
    return st.lists(sides, min_size=min_dims, max_size=max_dims).map(tuple)


@st.composite
def boxes_in(draw: DrawFn, shape: Sequence[int]) -> Box:
    """Boxes within `shape`, empty ones among them."""
    start = [draw(st.integers(0, n)) for n in shape]
    stop = [draw(st.integers(a, n)) for a, n in zip(start, shape, strict=True)]
    return Box(tuple(start), tuple(stop))


@st.composite
def tilings(draw: DrawFn, shape: Sequence[int], max_boxes: int = 12) -> list[Box]:
    """Irregular exact tilings of `shape` by up to `max_boxes` boxes, in any order."""
    boxes = [Box.whole(shape)]
    for _ in range(draw(st.integers(0, max_boxes - 1))):
        box = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        boxes += draw(_refinements(box, max_boxes - len(boxes)))
    return draw(st.permutations(boxes))


@st.composite
def _refinements(draw: DrawFn, box: Box, max_boxes: int) -> list[Box]:
    """Tilings of one box: by itself, by two halves, or by a pinwheel."""
    wide = [dim for dim, n in enumerate(box.shape) if n >= 3]
    if max_boxes >= 5 and len(wide) >= 2 and draw(st.booleans()):
        dims = draw(st.sampled_from(list(combinations(wide, 2))))
        inner = [sorted(draw(_two_cuts(box.start[dim], box.stop[dim]))) for dim in dims]
        return _pinwheel(box, dims, inner)
    cuttable = [dim for dim, n in enumerate(box.shape) if n >= 2]
    if max_boxes < 2 or not cuttable:
        return [box]
    dim = draw(st.sampled_from(cuttable))
    cut = draw(st.integers(box.start[dim] + 1, box.stop[dim] - 1))
    return [_with_span(box, dim, box.start[dim], cut), _with_span(box, dim, cut, box.stop[dim])]


def _two_cuts(start: int, stop: int) -> SearchStrategy[set[int]]:
    return st.sets(st.integers(start + 1, stop - 1), min_size=2, max_size=2)


def _pinwheel(box: Box, dims: tuple[int, int], inner: Sequence[Sequence[int]]) -> list[Box]:
    spans = _pinwheel_spans(
        *((box.start[dim], a, b, box.stop[dim]) for dim, (a, b) in zip(dims, inner, strict=True))
    )
    x, y = dims
    return [_with_span(_with_span(box, x, *rows), y, *columns) for rows, columns in spans]


def _pinwheel_spans(x: Sequence[T], y: Sequence[T]) -> list[tuple[tuple[T, T], tuple[T, T]]]:
    """Four boxes around a centre, each as long as two of the three parts of a side."""
    return [
        ((x[0], x[1]), (y[0], y[2])),
        ((x[0], x[2]), (y[2], y[3])),
        ((x[2], x[3]), (y[1], y[3])),
        ((x[1], x[3]), (y[0], y[1])),
        ((x[1], x[2]), (y[1], y[2])),
    ]


def _with_span(box: Box, dim: int, start: int, stop: int) -> Box:
    starts, stops = list(box.start), list(box.stop)
    starts[dim], stops[dim] = start, stop
    return Box(tuple(starts), tuple(stops))


def random_tiling(shape: Sequence[int], count: int, rng: np.random.Generator) -> list[Box]:
    """An irregular exact tiling of `shape` by `count` boxes (fewer if cells run out), shuffled.

    About half of the boxes come from pinwheels where there is room for them.
    """
    starts, stops = np.zeros((1, len(shape)), np.int64), np.array([shape], np.int64)
    while 2 * len(starts) < count and ((stops - starts) >= 2).any():
        starts, stops = _halved(starts, stops, len(starts), rng)
    starts, stops = _with_pinwheels(starts, stops, (count - len(starts)) // 8, rng)
    while len(starts) < count and ((stops - starts) >= 2).any():
        starts, stops = _halved(starts, stops, count - len(starts), rng)
    order = rng.permutation(len(starts))
    rows = zip(starts[order].tolist(), stops[order].tolist(), strict=True)
    return [Box(tuple(start), tuple(stop)) for start, stop in rows]


def _halved(starts: Ints, stops: Ints, at_most: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Cut up to `at_most` boxes in two, each at a random place of a random dim."""
    dims = rng.random(starts.shape)
    dims[stops - starts < 2] = -1
    dim = dims.argmax(axis=1)
    chosen = rng.permutation(np.flatnonzero(dims.max(axis=1) >= 0))[:at_most]
    place = chosen, dim[chosen]
    cuts = rng.integers(starts[place] + 1, stops[place])
    new_starts, new_stops = starts[chosen], stops[chosen]
    new_starts[np.arange(len(chosen)), dim[chosen]] = cuts
    stops = stops.copy()
    stops[place] = cuts
    return np.concatenate([starts, new_starts]), np.concatenate([stops, new_stops])


def _with_pinwheels(
    starts: Ints, stops: Ints, at_most: int, rng: np.random.Generator
) -> tuple[Ints, Ints]:
    """Turn up to `at_most` boxes into pinwheels in their first two dims."""
    if starts.shape[1] < 2:
        return starts, stops
    chosen = np.flatnonzero(((stops - starts)[:, :2] >= 3).all(axis=1))[: max(0, at_most)]
    rest = np.setdiff1d(np.arange(len(starts)), chosen)
    x, y = (_four_cuts(starts[chosen, dim], stops[chosen, dim], rng) for dim in (0, 1))
    new_starts, new_stops = [starts[rest]], [stops[rest]]
    for rows, columns in _pinwheel_spans(x, y):
        new_starts.append(starts[chosen])
        new_stops.append(stops[chosen])
        new_starts[-1][:, 0], new_stops[-1][:, 0] = rows
        new_starts[-1][:, 1], new_stops[-1][:, 1] = columns
    return np.concatenate(new_starts), np.concatenate(new_stops)


def _four_cuts(start: Ints, stop: Ints, rng: np.random.Generator) -> list[Ints]:
    low = rng.integers(start + 1, stop - 1)
    return [start, low, rng.integers(low + 1, stop), stop]

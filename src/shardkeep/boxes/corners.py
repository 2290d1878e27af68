"""Where does the number of boxes over a cell differ from one?

Let a box put +1 at its first corner and -1 or +1 at the others, by parity. Summing such marks
over all cells up to x gives 1 inside the box and 0 outside, and different marks give different
sums. So boxes tile a shape exactly when their marks add up to those of the whole shape, which
sorting decides, for any tiling in any number of dims. What is left over, the *residue*, says
where: its lexicographically first point is the first wrong cell, because no other point lies
at or before it in every dim, and its value is the error there.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardkeep.boxes.box import Box
from shardkeep.boxes.box_arrays import Ints
from shardkeep.errors import InvalidError

# Coordinates of corners held at once: 2**d corners for each box. 512 MiB.
_MAX_COORDINATES = 2**26

_Numbers = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Defect:
    """Cells that are covered alike, but not once: by `indices`, which are none or several."""

    start: tuple[int, ...]
    stop: tuple[int, ...]
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Marks:
    """Points, distinct and in lexicographic order, as (ndim, count), and a value for each."""

    points: Ints
    values: Ints


def find_defects(shape: Ints, starts: Ints, stops: Ints) -> Iterator[Defect]:
    """Yield disjoint defects until they make up all wrong cells, in row-major order of start.

    Boxes must lie within `shape`. Empty ones do not matter: their marks cancel.
    """
    whole = (starts == 0).all(axis=1) & (stops == shape[:, None]).all(axis=1)
    # A dim that no box splits adds nothing, but one of size 0 is what makes all marks cancel.
    split = np.flatnonzero(~whole | (shape == 0))
    residue = _residue(shape[split], starts[split], stops[split])
    while residue.values.size:
        defect, residue = _split_off(residue, shape[split], starts[split], stops[split])
        yield _with_whole_dims(defect, shape, split)


def marks_cancel(shape: Sequence[int], boxes: Sequence[Box]) -> bool:
    """Whether nothing is left over, told in less than half the time; False where it is not told.

    Marks cancel when the points of +1 and those of -1 are the same. Each point is one number. One
    dim's starts or stops are in memory at a time.
    """
    # A dim that no box splits adds nothing, but one of size 0 is what makes all marks cancel.
    split = [dim for dim, side in enumerate(shape) if not side or _is_split(dim, side, boxes)]
    if not split:
        return len(boxes) == 1
    span = math.prod(shape[dim] + 1 for dim in split)
    if span > 2**63 - 1 or _are_too_many(len(boxes), len(split)):
        return False
    # Numbers that fit are half as large, and sorted sooner.
    kind = np.int32 if span < 2**31 else np.int64
    count = len(boxes)
    points = np.zeros((2, 2 ** (len(split) - 1), count + 1), kind)
    rows = _rows_by_corner(points, len(split))
    for place, dim in enumerate(split):
        side = shape[dim]
        # First: what lies outside the shape need not fit into these numbers.
        if max((box.stop[dim] for box in boxes), default=0) > side:
            return False
        points *= side + 1
        _add(rows[place, 0], np.fromiter((box.start[dim] for box in boxes), kind, count), 0)
        _add(rows[place, 1], np.fromiter((box.stop[dim] for box in boxes), kind, count), side)
    # The last ones are of the whole shape: what is taken off stands on the other side.
    points[:, :, -1] = points[::-1, :, -1].copy()
    plus, minus = points.reshape(2, -1)
    plus.sort()
    minus.sort()
    return bool((plus == minus).all())


def _is_split(dim: int, side: int, boxes: Sequence[Box]) -> bool:
    return any(box.start[dim] or box.stop[dim] != side for box in boxes)


def _rows_by_corner(points: _Numbers, ndim: int) -> Mapping[tuple[int, int], Sequence[_Numbers]]:
    """By dim, the rows of corners at the boxes' starts (0) and stops (1) there.

    Those of +1 are in the first half of `points`, those of -1 in the second.
    """
    found: defaultdict[tuple[int, int], list[_Numbers]] = defaultdict(list)
    halves = [iter(points[0]), iter(points[1])]
    for corner in product((0, 1), repeat=ndim):
        row = next(halves[sum(corner) % 2])
        for at in enumerate(corner):
            found[at].append(row)
    return found


def _add(rows: Sequence[_Numbers], coordinates: _Numbers, whole: int) -> None:
    """Take one more dim into the numbers of all boxes, and of the whole shape."""
    for row in rows:
        row[:-1] += coordinates
        row[-1] += whole


def _residue(shape: Ints, starts: Ints, stops: Ints) -> _Marks:
    """The marks of all boxes less those of the whole shape."""
    ndim, count = starts.shape
    if _are_too_many(count, ndim):
        raise InvalidError(f"too many corners: {count} boxes that split {ndim} dims")
    starts = np.append(starts, np.zeros_like(shape)[:, None], axis=1)
    stops = np.append(stops, shape[:, None], axis=1)
    weights = np.ones(count + 1, np.int64)
    weights[-1] = -1
    return _collected(*_corners(starts, stops, weights))


def _are_too_many(count: int, ndim: int) -> bool:
    return ((count + 1) * ndim) << ndim > _MAX_COORDINATES


def _corners(starts: Ints, stops: Ints, weights: Ints) -> tuple[Ints, Ints]:
    ndim, count = starts.shape
    corners = [np.array(rows, np.int64) for rows in product(*zip(starts, stops, strict=True))]
    signs = [math.prod(sides) for sides in product((1, -1), repeat=ndim)]
    points = np.concatenate([rows.reshape(ndim, count) for rows in corners], axis=1)
    return points, np.concatenate([weights * sign for sign in signs])


def _collected(points: Ints, values: Ints) -> _Marks:
    """Add up the values at equal points, and drop points whose sum is 0."""
    keys = _lexicographic_keys(points)
    order = np.argsort(keys)
    keys = keys[order]
    first = np.flatnonzero(np.append(True, keys[1:] != keys[:-1])[: keys.size])
    sums = np.add.reduceat(values[order], first) if first.size else values
    return _Marks(points[:, order[first[sums != 0]]], sums[sums != 0])


def _lexicographic_keys(points: Ints) -> Ints:
    """One number for each point, in the order of points; equal points get equal numbers."""
    keys, span = np.zeros(points.shape[1], np.int64), 1
    for row in points:
        size = int(row.max(initial=0)) + 1
        if span * size > 2**63 - 1:  # Ranks are smaller, and sort and differ alike.
            (keys, span), (row, size) = _ranks(keys), _ranks(row)
        keys, span = keys * size + row, span * size
    return keys


def _ranks(numbers: Ints) -> tuple[Ints, int]:
    distinct, ranks = np.unique(numbers, return_inverse=True)
    return ranks.astype(np.int64), distinct.size


def _split_off(residue: _Marks, shape: Ints, starts: Ints, stops: Ints) -> tuple[Defect, _Marks]:
    """The defect at the first wrong cell, and the residue without it."""
    start, value = residue.points[:, 0], residue.values[:1]
    stop = _end_of_constant_box(residue, start, shape)
    here = ((starts <= start[:, None]) & (start[:, None] < stops)).all(axis=0)
    indices = np.flatnonzero(here)
    # Within all of these boxes the count says that no other box can be there.
    stop = np.minimum(stop, stops[:, indices].min(axis=1, initial=2**63 - 1))
    points, values = _corners(start[:, None], stop[:, None], -value)
    points = np.concatenate([residue.points, points], axis=1)
    rest = _collected(points, np.concatenate([residue.values, values]))
    return Defect(tuple(start.tolist()), tuple(stop.tolist()), tuple(indices.tolist())), rest


def _end_of_constant_box(residue: _Marks, start: Ints, shape: Ints) -> Ints:
    """The stop of a box from `start` on in which the error is the same everywhere.

    The box takes the longest run along the last dim, then as many equal runs along the dim
    before it, and so on.
    """
    # Seen from `start` on, a mark acts as if it stood at its nearest point there. Marks of
    # defects elsewhere cancel, so that they do not cut this one into pieces.
    points = _collected(np.maximum(residue.points, start[:, None]), residue.values).points
    stop = shape.copy()
    for dim in reversed(range(len(shape))):
        before = (points[:dim] == start[:dim, None]).all(axis=0)
        after = (points[dim + 1 :] < stop[dim + 1 :, None]).all(axis=0)
        ahead = points[dim, before & after & (points[dim] > start[dim])]
        stop[dim] = ahead.min(initial=shape[dim])
    return stop


def _with_whole_dims(defect: Defect, shape: Ints, split: NDArray[np.intp]) -> Defect:
    start, stop = np.zeros_like(shape), shape.copy()
    start[split], stop[split] = defect.start, defect.stop
    return Defect(tuple(start.tolist()), tuple(stop.tolist()), defect.indices)

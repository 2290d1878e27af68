"""Do these boxes tile the shape, and if not, where is the mistake?

A tiling has every cell of the shape in exactly one box. `corners` explains how that is decided
without comparing boxes with each other.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from shardkeep.boxes.box import Box, trusted_box
from shardkeep.errors import CoverError, InvalidError

if TYPE_CHECKING:
    from shardkeep.boxes.corners import Defect

# Up to this many corners, a dict is faster than arrays (and than importing numpy).
_FEW_CORNERS = 128

_MAX_NAMED = 4


@dataclass(frozen=True, slots=True)
class Overlap:
    """Cells that lie in all the boxes with these indices, and in no other box."""

    box: Box
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TilingReport:
    """What keeps boxes from tiling `shape`: disjoint gaps and overlaps, and boxes outside.

    `outside` are indices of boxes that reach out of the shape or have other dims. Overlaps and
    gaps count what lies inside. `is_cut_short` says that there is more than is reported.

    >>> report = check_tiling((4,), [Box((0,), (2,)), Box((1,), (3,))])
    >>> report.describe()
    'box 0 and box 1 share [1:2]; no box holds [3:4]'
    """

    shape: tuple[int, ...]
    gaps: tuple[Box, ...] = ()
    overlaps: tuple[Overlap, ...] = ()
    outside: tuple[int, ...] = ()
    is_cut_short: bool = False

    @property
    def is_tiling(self) -> bool:
        return not (self.gaps or self.overlaps or self.outside)

    def describe(self, labels: Sequence[str] | None = None) -> str:
        """One sentence that says where it goes wrong, with `labels[i]` for box i."""
        if self.is_tiling:
            return f"the boxes tile shape {self.shape}"
        parts = [f"{_names([i], labels)} reaches outside shape {self.shape}" for i in self.outside]
        parts += [f"{_names(found.indices, labels)} share {found.box}" for found in self.overlaps]
        parts += [f"no box holds {gap}" for gap in self.gaps]
        return "; ".join([*parts, "and more"] if self.is_cut_short else parts)


def check_tiling(shape: Sequence[int], boxes: Sequence[Box], *, limit: int = 8) -> TilingReport:
    """Where `boxes` fail to tile `shape`: at most `limit` gaps, overlaps and boxes outside.

    Empty boxes within the shape do no harm, so any of them tile a shape without cells.
    """
    whole = Box.whole(shape)
    if limit < 1:
        raise InvalidError(f"limit is {limit}; expected 1 or more")
    if (len(boxes) + 1) << min(whole.ndim, 64) <= _FEW_CORNERS and _few_boxes_tile(whole, boxes):
        return TilingReport(whole.stop)
    return _report(whole, boxes, limit)


def require_tiling(shape: Sequence[int], boxes: Sequence[Box], *, what: str) -> None:
    """Raise a CoverError that names `what` and the place, unless `boxes` tile `shape`."""
    report = check_tiling(shape, boxes)
    if not report.is_tiling:
        labels = [f"box {index} {box}" for index, box in enumerate(boxes)]
        raise CoverError(
            f"{what} is not tiled: every cell of shape {report.shape} must lie in exactly one of "
            f"{len(boxes)} boxes, but {report.describe(labels)}"
        )


def _few_boxes_tile(whole: Box, boxes: Sequence[Box]) -> bool:
    """Whether the marks at the corners of `boxes` add up to those of `whole`."""
    if not all(box.ndim == whole.ndim and whole.contains(box) for box in boxes):
        return False
    marks: defaultdict[tuple[int, ...], int] = defaultdict(int)
    signs = [math.prod(sides) for sides in product((1, -1), repeat=whole.ndim)]
    for weight, box in [(-1, whole), *((1, box) for box in boxes)]:
        corners = product(*zip(box.start, box.stop, strict=True))
        for point, sign in zip(corners, signs, strict=True):
            marks[point] += weight * sign
    return not any(marks.values())


def _report(whole: Box, boxes: Sequence[Box], limit: int) -> TilingReport:
    import numpy as np

    from shardkeep.boxes.box_arrays import coordinates_of
    from shardkeep.boxes.corners import find_defects, marks_cancel

    ndim = whole.ndim
    others = [index for index, box in enumerate(boxes) if len(box.start) != ndim]
    if not others and marks_cancel(whole.stop, boxes):
        return TilingReport(whole.stop)
    numbers = range(len(boxes))
    if others:
        numbers = sorted({*numbers}.difference(others))
    shape = np.array(whole.stop, np.int64)
    starts, stops = coordinates_of([boxes[i] for i in numbers] if others else boxes, ndim)
    reaching_out = np.flatnonzero((stops > shape[:, None]).any(axis=0)).tolist()
    outside = [*others, *(numbers[i] for i in reaching_out)]
    if reaching_out:
        starts, stops = np.minimum(starts, shape[:, None]), np.minimum(stops, shape[:, None])
    defects = find_defects(shape, starts, stops)
    return _first_of(whole.stop, defects, numbers, sorted(outside), limit)


def _first_of(
    shape: tuple[int, ...],
    defects: Iterable[Defect],
    numbers: Sequence[int],
    outside: Sequence[int],
    limit: int,
) -> TilingReport:
    """The report of the first defects, up to `limit` of a kind; `numbers` are the boxes' own."""
    gaps: list[Box] = []
    overlaps: list[Overlap] = []
    for defect in defects:
        box = trusted_box(defect.start, defect.stop)
        if defect.indices:
            overlaps.append(Overlap(box, tuple([numbers[index] for index in defect.indices])))
        else:
            gaps.append(box)
        if max(len(gaps), len(overlaps)) > limit:
            break
    return TilingReport(
        shape,
        tuple(gaps[:limit]),
        tuple(overlaps[:limit]),
        tuple(outside[:limit]),
        is_cut_short=max(len(gaps), len(overlaps), len(outside)) > limit,
    )


def _names(indices: Sequence[int], labels: Sequence[str] | None) -> str:
    """`box 0, box 1 and box 2`; of very many boxes only the first few."""
    shown = [labels[index] if labels else f"box {index}" for index in indices[:_MAX_NAMED]]
    if len(indices) > _MAX_NAMED:
        shown.append(f"{len(indices) - _MAX_NAMED} more")
    *most, last = shown
    return f"{', '.join(most)} and {last}" if most else last

"""Which source boxes meet which wanted boxes, and in which cells?

Loading, resharding and sending are all this one join: what someone has meets what someone
wants. The time follows the number of boxes and of meetings, not the product of both lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from shardkeep.boxes.box import Box
from shardkeep.errors import InvalidError

Meeting = tuple[int, int, Box]
"""The indices of two boxes and the cells that they share: at least one."""

# Up to this many pairs, plain loops are faster than arrays (and than importing numpy).
_FEW_PAIRS = 256


def meetings(sources: Sequence[Box], wanted: Sequence[Box]) -> list[Meeting]:
    """Each (source index, wanted index, shared box), ordered by wanted, then source index.

    >>> meetings([Box((0,), (4,)), Box((4,), (8,))], [Box((2,), (6,))])
    [(0, 0, Box(start=(2,), stop=(4,))), (1, 0, Box(start=(4,), stop=(6,)))]
    """
    ndim = _common_ndim([*sources, *wanted])
    if len(sources) * len(wanted) > _FEW_PAIRS:
        from shardkeep.boxes.joins import join

        return join(sources, wanted, ndim)
    pairs = [(i, j, a.intersect(b)) for j, b in enumerate(wanted) for i, a in enumerate(sources)]
    return [(i, j, shared) for i, j, shared in pairs if shared]


def find_overlaps(boxes: Sequence[Box], *, limit: int = 8) -> tuple[Meeting, ...]:
    """Pairs (i, j, shared box) with i < j that share cells, sorted; at most `limit`.

    The boxes need not cover anything. Which pairs are found first is not specified.
    """
    ndim = _common_ndim(boxes)
    if limit < 1:
        raise InvalidError(f"limit is {limit}; expected 1 or more")
    if len(boxes) ** 2 > 2 * _FEW_PAIRS:
        from shardkeep.boxes.joins import self_join

        return tuple(self_join(boxes, ndim, limit))
    pairs = [(i, j, boxes[i].intersect(boxes[j])) for i, j in combinations(range(len(boxes)), 2)]
    return tuple([(i, j, shared) for i, j, shared in pairs if shared][:limit])


def _common_ndim(boxes: Sequence[Box]) -> int:
    ndims = {len(box.start) for box in boxes}
    if len(ndims) > 1:
        raise InvalidError(f"boxes that may meet must have equally many dims, got {sorted(ndims)}")
    return ndims.pop() if ndims else 0

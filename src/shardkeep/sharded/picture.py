"""How does a sharded tensor look to a person?"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING

from shardkeep.layouts import Layout

if TYPE_CHECKING:
    from shardkeep.sharded.sharded_tensor import ShardedTensorBase

_LISTED_SHARDS = 6
_MARKS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def one_line(tensor: ShardedTensorBase) -> str:
    """Size, dtype, device, and who holds what; long lists are cut."""
    records = tensor.metadata().shards_metadata
    shown = [str(record) for record in records[:_LISTED_SHARDS]]
    if len(records) > _LISTED_SHARDS:
        shown.append(f"... {len(records) - _LISTED_SHARDS} more")
    grad = ", requires_grad=True" if tensor.requires_grad else ""
    return (
        f"{type(tensor).__name__}(size={list(tensor.shape)}, dtype={tensor.dtype}{grad}, "
        f"shards=[{'; '.join(shown)}], {len(tensor.local_shards())} local)"
    )


def draw_layout(layout: Layout, *, max_rows: int = 12, max_columns: int = 48) -> str:
    """A map of the first two dims: each cell shows the rank that holds it, `+` several, `.` none.

    From rank 10 on the marks are letters, which repeat after rank 61. A tensor of one dim is one
    line; further dims are shown at index 0. What is larger than the map is drawn at a smaller
    scale, in which narrow boxes may not show.

    >>> print(draw_layout(Layout.chunked((4, 6), 0, [0, 1])))
    000000
    000000
    111111
    111111
    """
    rows, columns = _row_and_column(layout.shape, 1)
    # The cell of the tensor that each cell of the map stands for.
    ys, xs = _sample(rows, max_rows), _sample(columns, max_columns)
    marks = [["."] * len(xs) for _ in ys]
    for box, parts in layout.holders.items():
        if any(box.start[2:]):
            continue
        top, left = _row_and_column(box.start, 0)
        bottom, right = _row_and_column(box.stop, 1)
        mark = _mark({part.rank for part in parts})
        for line in marks[bisect_left(ys, top) : bisect_left(ys, bottom)]:
            for x in range(bisect_left(xs, left), bisect_left(xs, right)):
                line[x] = mark if line[x] == "." else "+"
    return "\n".join(map("".join, marks))


def _sample(side: int, most: int) -> list[int]:
    """At most `most` indices of a dim, evenly spread."""
    count = min(side, most)
    return [index * side // count for index in range(count)]


def _row_and_column(numbers: Sequence[int], missing: int) -> list[int]:
    """The first two numbers; where there is only one, it is the column."""
    return [*[missing] * (2 - len(numbers)), *numbers][:2]


def _mark(ranks: set[int]) -> str:
    return "+" if len(ranks) > 1 else _MARKS[min(ranks) % len(_MARKS)]

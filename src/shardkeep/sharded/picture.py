"""How does a sharded tensor look to a person?"""

from __future__ import annotations

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

    >>> print(draw_layout(Layout.chunked((4, 6), 0, [0, 1])))
    000000
    000000
    111111
    111111
    """
    rows, columns = _extent(layout, 0), _extent(layout, 1)
    height, width = min(rows, max_rows), min(columns, max_columns)
    lines: list[str] = []
    for y in range(height):
        marks = [_mark(layout, y * rows // height, x * columns // width) for x in range(width)]
        lines.append("".join(marks))
    return "\n".join(lines)


def _extent(layout: Layout, dim: int) -> int:
    return layout.shape[dim] if dim < len(layout.shape) else 1


def _mark(layout: Layout, *cell: int) -> str:
    """The mark of the ranks that hold a cell (further dims at 0)."""
    point = [*cell, *[0] * len(layout.shape)][: len(layout.shape)]
    owners = sorted(
        {
            part.rank
            for part in layout.parts()
            if all(a <= i < b for a, i, b in zip(part.box.start, point, part.box.stop, strict=True))
        }
    )
    if not owners:
        return "."
    return _MARKS[owners[0] % len(_MARKS)] if len(owners) == 1 else "+"

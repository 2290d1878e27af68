"""How do tables look? Columns without lines, so that they can be cut and pasted."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table


def plain_table(
    *columns: str, left: Sequence[str] = (), fold: Sequence[str] = (), fold_width: int = 12
) -> Table:
    """A table whose columns are flush right, but for those named `left`.

    In a narrow window those named `fold` give way; numbers stay in one piece.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(
            name,
            justify="left" if name in left else "right",
            no_wrap=name not in fold,
            overflow="fold",
            min_width=fold_width if name in fold else None,
        )
    return table

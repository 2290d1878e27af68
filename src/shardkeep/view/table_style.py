"""How do tables look? Columns without lines, so that they can be cut and pasted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table

_NO_FOLD: Mapping[str, int] = {}
_NARROWEST = 12


def plain_table(
    *columns: str, left: Sequence[str] = (), fold: Mapping[str, int] = _NO_FOLD
) -> Table:
    """A table whose columns are flush right, but for those named `left`.

    In a narrow window the columns of `fold`, given with the length of their longest cell, give
    way; numbers stay in one piece.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(
            name,
            justify="left" if name in left else "right",
            no_wrap=name not in fold,
            overflow="fold",
            min_width=min(_NARROWEST, fold[name]) if name in fold else None,
        )
    return table

"""What do people see of the cost of a load?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.text import Text

from shardkeep.errors import name_ranks
from shardkeep.transfer.cost import ReadCost
from shardkeep.view.explaining import MeshCost
from shardkeep.view.table_style import plain_table
from shardkeep.view.words import count_text, size_text

_LISTED = 32
_MAX_RUNS = 4

_COLUMNS: dict[str, Callable[[ReadCost], str]] = {
    "wants": lambda cost: size_text(cost.nbytes_wanted),
    "reads": lambda cost: size_text(cost.nbytes_read),
    "over-read": lambda cost: over_read(cost),
    "requests": lambda cost: f"{cost.requests:,}",
    "files": lambda cost: f"{cost.files:,}",
    "scratch": lambda cost: size_text(cost.scratch_nbytes),
}


def over_read(cost: ReadCost) -> str:
    """How much is read for what is wanted.

    >>> over_read(ReadCost(100, 150, 1, 1, 0)), over_read(ReadCost(0, 0, 0, 0, 0))
    ('1.50 x', '')
    """
    return f"{cost.nbytes_read / cost.nbytes_wanted:.2f} x" if cost.nbytes_wanted else ""


def cost_table(found: MeshCost) -> RenderableType:
    """The least, the most and all of it, then the ranks; those of equal cost are one line."""
    axes = " x ".join(f"{name} {size}" for name, size in found.axes.items())
    said = f"{count_text(found.ranks, 'rank')}: {axes}"
    if found.is_sample:
        said += (
            f". {len(found.planned)} of {found.distinct} different ranks were planned, spread "
            "evenly; --ranks plans more"
        )
    table = plain_table("", *_COLUMNS, left=("",))
    costs = [one.cost for one in found.planned]
    for name, choose in (("least", min), ("most", max)):
        edge = choose(costs, key=lambda cost: (cost.nbytes_read, cost.requests))
        table.add_row(Text(f"{name} of a rank"), *(show(edge) for show in _COLUMNS.values()))
    wanted, read, requests = map(found.total, ("nbytes_wanted", "nbytes_read", "requests"))
    whole = ReadCost(wanted, read, requests, 0, 0)
    about = "all ranks, about" if found.is_sample else "all ranks"
    cells = [show(whole) for name, show in _COLUMNS.items() if name not in ("files", "scratch")]
    table.add_row(Text(about), *cells, "", "")
    return Group(Text(said), table, Text(""), _ranks_table(found))


def _ranks_table(found: MeshCost) -> RenderableType:
    table = plain_table("rank", *_COLUMNS, left=("rank",), fold={"rank": 4})
    by_cost = [
        (cost, sorted(rank for one in group for rank in one.ranks))
        for cost, group in groupby(
            sorted(found.planned, key=lambda one: (_order(one.cost), one.ranks)),
            key=lambda one: one.cost,
        )
    ]
    by_cost.sort(key=lambda item: item[1])
    for cost, ranks in by_cost[:_LISTED]:
        table.add_row(Text(_names(ranks)), *(show(cost) for show in _COLUMNS.values()))
    if len(by_cost) <= _LISTED:
        return table
    return Group(table, Text(f"and {len(by_cost) - _LISTED} more; --json has all"))


def _names(ranks: Sequence[int]) -> str:
    """The ranks, or how many there are of them.

    >>> _names([0, 1, 2, 5]), _names(range(0, 80, 8))
    ('0-2, 5', '10 from 0 to 72')
    """
    runs = name_ranks(ranks).split(" ", 1)[1]
    if runs.count(",") < _MAX_RUNS:
        return runs
    return f"{len(ranks)} from {ranks[0]} to {ranks[-1]}"


def _order(cost: ReadCost) -> tuple[int, ...]:
    return (
        cost.nbytes_wanted,
        cost.nbytes_read,
        cost.requests,
        cost.files,
        cost.scratch_nbytes,
    )

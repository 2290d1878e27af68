"""Who would read which bytes of which file, if a checkpoint were loaded on another mesh?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from shardkeep.plan.many_reads import Ranges
from shardkeep.transfer.cost import CostPlanner, total_cost
from shardkeep.transfer.opened import Opened
from shardkeep.transfer.threads import core_count
from shardkeep.view.explaining import (
    MeshCost,
    RanksCost,
    parse_mesh,
    parse_rules,
    share_out,
)
from shardkeep.view.keys import keys_of

_MOST_RANKS = 16
_MOST_PLANNED = 800_000
_MOST_RANGES = 400


def what_if_page(
    opened: Opened, mesh: str, shards: Sequence[str], pattern: str | None
) -> dict[str, Any]:
    """The load plan of each rank, or of some of them, spread evenly."""
    axes = parse_mesh(mesh)
    keys = keys_of(opened.manifest, pattern)
    shares = share_out(opened, keys, axes, parse_rules(axes, shards))
    threads = core_count()
    planned: list[RanksCost] = []
    readers: list[dict[str, Any]] = []
    planner = CostPlanner(opened, threads=threads)
    for ranks in shares.chosen(_most_ranks(len(keys))):
        kinds = shares.kinds_of(ranks[0])
        ranges = planner.ranges_of(kinds)
        cost = total_cost(kinds, ranges.values())
        planned.append(RanksCost(ranks, cost))
        peak = cost.nbytes_wanted + threads * cost.scratch_nbytes
        files = [_file(index, found) for index, found in ranges.items()]
        name = planned[-1].name
        readers.append(
            {
                "ranks": name,
                "count": len(ranks),
                **asdict(cost),
                "peak_nbytes": peak,
                "reads": files,
            }
        )
    found = MeshCost(axes, shares.ranks, len(shares.alike), tuple(planned))
    totals = ("nbytes_wanted", "nbytes_read", "requests")
    return {
        "mesh": axes,
        "ranks": found.ranks,
        "distinct": found.distinct,
        "is_sample": found.is_sample,
        "threads": threads,
        "total": {name: found.total(name) for name in totals},
        "readers": readers,
        "file_nbytes": list(opened.manifest.files.nbytes),
        "file_names": [opened.manifest.file_name(n) for n in range(len(opened.manifest.files))],
    }


def _most_ranks(tensors: int) -> int:
    """How many ranks are planned: fewer of a checkpoint that takes long to plan for each."""
    return max(2, min(_MOST_RANKS, _MOST_PLANNED // max(1, tensors)))


def _file(index: int, found: Ranges) -> dict[str, Any]:
    ranges = _joined(zip(found.starts.tolist(), found.stops.tolist(), strict=True))
    return {
        "file": index,
        "nbytes": found.nbytes,
        "requests": len(found.starts),
        "ranges": ranges[:_MOST_RANGES],
        "range_count": len(ranges),
    }


def _joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges that come in their order, those that touch as one.

    >>> _joined([(0, 4), (4, 8), (9, 10)])
    [(0, 8), (9, 10)]
    """
    found: list[tuple[int, int]] = []
    for start, stop in ranges:
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(stop, found[-1][1])
        else:
            found.append((start, stop))
    return found

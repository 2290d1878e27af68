"""Do complete copies of a tensor that lie on different meshes hold the same values?

They may be cut in different ways, so that no two boxes are alike. Hence a sum over cells, each a
number made of its place and its value: it comes out the same however the cells are divided.
"""

# torch leaves arange(), tolist() and the like untyped.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
import xxhash

from shardkeep.boxes import Box
from shardkeep.errors import ConflictError, name_ranks
from shardkeep.layouts import Layout
from shardkeep.plan.settle import SaveView
from shardkeep.state.frozen import Memory, thawed
from shardkeep.transfer.agreement import Agreement
from shardkeep.transfer.replicas import CheckReplicas, holders_of_part
from shardkeep.transfer.write import as_bytes

_SAMPLED_CELLS = 16 * 1024
_STEP_CELLS = 1024 * 1024
_MASK = 2**64 - 1
# Odd numbers whose products mix place and value well; they fit an int64.
_PLACE, _VALUE, _LAST = 0x1E3779B97F4A7C15, 0x3F58476D1CE4E5B9, 0x14D049BB133111EB

Sums = dict[int, int]
"""By the number of a set of sources: the sum of what a rank holds of its tensors."""


def sum_sources(
    agreement: Agreement,
    view: SaveView,
    number: int,
    memory: Mapping[str, Sequence[Memory]],
    me: int,
    check: CheckReplicas,
) -> Sums:
    """What this rank, which has the view of this number, adds to the sums of its sources."""
    found: Sums = {}
    for index, (groups, keys) in enumerate(agreement.sources.items()):
        group = next((group for group in groups if number in group), None)
        if group is None or check == "none":
            continue
        ranks = [rank for one in group for rank in agreement.ranks[one]]
        for key in keys:
            entry = view.entries[key]
            layout = entry.layout or Layout.replicated(entry.shape, ranks)
            mine = _sum_held(key, layout, memory[key], me, check)
            found[index] = (found.get(index, 0) + mine) & _MASK
    return found


def _sum_held(
    key: str, layout: Layout, memory: Sequence[Memory], me: int, check: CheckReplicas
) -> int:
    """The sum over the cells of which this rank is the first holder."""
    salt = xxhash.xxh3_64_intdigest(key.encode()) >> 1
    total = 0
    for part in layout.parts_of(me):
        if holders_of_part(layout, part)[0] == me:
            view = thawed(memory[part.buffer][part.place.slices()])
            total += _sum_box(view, part.box, layout.shape, salt, check)
    return total & _MASK


def _sum_box(
    view: torch.Tensor, box: Box, shape: Sequence[int], salt: int, check: CheckReplicas
) -> int:
    numel = math.prod(shape)
    # The same cells of the whole tensor, whoever holds them.
    step = 1 if check == "all" else max(1, numel // _SAMPLED_CELLS)
    total = 0
    for start in range(0, numel, step * _STEP_CELLS):
        places = torch.arange(start, min(numel, start + step * _STEP_CELLS), step)
        total += _sum_cells(view, box, shape, places, salt)
    return total


def _sum_cells(
    view: torch.Tensor, box: Box, shape: Sequence[int], places: torch.Tensor, salt: int
) -> int:
    coordinates = torch.unravel_index(places, tuple(shape)) if shape else ()
    inside = torch.ones_like(places, dtype=torch.bool)
    for at, start, stop in zip(coordinates, box.start, box.stop, strict=True):
        inside &= (at >= start) & (at < stop)
    local = [at[inside] - start for at, start in zip(coordinates, box.start, strict=True)]
    device = view.device
    cells = view[tuple(at.to(device) for at in local)] if local else view.reshape(1)[inside]
    if not cells.numel():
        return 0
    # Each cell as one or two words; a narrow one fills a part of its word.
    raw = torch.from_numpy(as_bytes(cells)).reshape(cells.numel(), -1)
    words = torch.zeros((cells.numel(), max(8, raw.shape[1])), dtype=torch.uint8)
    words[:, : raw.shape[1]] = raw
    mixed = places[inside, None] * _PLACE + salt
    mixed = (mixed ^ (words.view(torch.int64) * _VALUE)) * _LAST
    mixed = (mixed ^ (mixed >> 29)) * _VALUE
    return int((mixed ^ (mixed >> 32)).sum().item()) & _MASK


def require_same_sources(agreement: Agreement, sums: Mapping[int, Sums]) -> None:
    """Raise unless all sources of each tensor have the same sum; `sums` are by rank."""
    for index, (groups, keys) in enumerate(agreement.sources.items()):
        members = [[rank for one in group for rank in agreement.ranks[one]] for group in groups]
        totals = [sum(sums[rank].get(index, 0) for rank in ranks) & _MASK for ranks in members]
        for ranks, total in zip(members[1:], totals[1:], strict=True):
            if total != totals[0]:
                raise _divergence(keys, members[0], ranks)


def _divergence(keys: Sequence[str], first: Sequence[int], second: Sequence[int]) -> ConflictError:
    named = ", ".join(keys[:3]) + (f" or {len(keys) - 3} more" if len(keys) > 3 else "")
    return ConflictError(
        f"{name_ranks(sorted(first))} and {name_ranks(sorted(second))} hold whole tensors under "
        f"the same keys with different values: {named}. One of them would be lost; give each a "
        "key of its own (such as experts), synchronise them, or pass check_replicas='none'"
    )

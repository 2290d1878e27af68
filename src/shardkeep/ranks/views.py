"""Do all ranks see the same state? Digests travel first; views only where they differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from shardkeep.plan import View, decode_view, digest_view, encode_view
from shardkeep.ranks.agree import agree
from shardkeep.ranks.group import RankGroup

_DIGEST_NBYTES = 16
Views = Sequence[tuple[View, Sequence[int]]]
"""The distinct views, each with the ranks that share it."""


def share_views(group: RankGroup, phase: str, check: Callable[[], View]) -> Views:
    """Every distinct view with its ranks. If `check` raises on one rank, all raise."""
    mine: list[tuple[View, bytes]] = []

    def describe() -> bytes:
        view = check()
        data = encode_view(view)
        mine.append((view, data))
        return digest_view(data) + len(data).to_bytes(8, "little")

    facts = agree(group, phase, describe)
    view, data = mine[0]
    own = facts[group.my_index]
    found: list[tuple[View, Sequence[int]]] = []
    for fact in dict.fromkeys(facts):
        indices = [index for index, other in enumerate(facts) if other == fact]
        if len(indices) < group.size:
            nbytes = int.from_bytes(fact[_DIGEST_NBYTES:], "little")
            sent = share_from(group, indices[0], data if fact == own else None, nbytes)
            seen = view if fact == own else decode_view(sent)
        else:
            seen = view
        found.append((seen, [group.ranks[index] for index in indices]))
    return found


def share_from(group: RankGroup, index: int, payload: bytes | None, nbytes: int) -> bytes:
    """The payload of group rank `index` on all ranks; `nbytes` is known to all."""
    if group.size == 1:
        return payload or b""
    raw = bytearray(payload if payload is not None else bytes(nbytes))
    if not raw:
        return b""
    wire = torch.frombuffer(raw, dtype=torch.uint8).to(group.wire_device)
    group.broadcast(wire, index)
    return bytes(wire.cpu().numpy())

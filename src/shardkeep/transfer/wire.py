"""Through which process group do bytes of files move? One of gloo that nobody else uses.

Training has its own collectives under way in its groups, perhaps of a backend that knows devices
only. And when a rank gives up in the middle, messages stay in the group: it is left alone then,
and the next act makes another.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
import xxhash

from shardkeep.ranks import RankGroup
from shardkeep.transfer.council import SoloCouncil, StoreCouncil
from shardkeep.transfer.groups import default_store

_NEVER = 0x7FFF_0001
"""The tag of a message that nobody sends."""
_MOMENT = timedelta(milliseconds=1)


class Wire:
    """The ranks of `group`, who can send each other bytes."""

    def __init__(self, group: Any, *, timeout: float) -> None:
        self._outer = group
        self._timeout = timedelta(seconds=timeout)
        self._made: dict[tuple[int, ...], RankGroup] = {}

    def connect(self, members: Sequence[int] | None = None) -> RankGroup:
        """The group of all ranks, or of some, made at the first call. SPMD on these."""
        outer = RankGroup.of(self._outer)
        ranks = outer.ranks if members is None else tuple(members)
        if ranks not in self._made:
            self._made[ranks] = self._make(outer, ranks)
        return self._made[ranks]

    def drop(self) -> None:
        """Close all connections: nobody waits in them any more. Another call makes others."""
        made, self._made = self._made, {}
        for group in made.values():
            if group.messenger is None or group.size == 1:
                continue
            # Whoever waits in vain closes all connections of a gloo group, for want of an abort.
            room = torch.empty(1, dtype=torch.uint8)
            with suppress(RuntimeError):
                other = (group.my_index + 1) % group.size
                cast("Any", group.messenger.recv([room], other, _NEVER)).wait(_MOMENT)

    def _make(self, outer: RankGroup, ranks: tuple[int, ...]) -> RankGroup:
        if len(ranks) == 1:
            return RankGroup(None, ranks, outer.me)
        if not dist.is_initialized():
            # A group that was made by hand, by whoever has no default one.
            return outer
        # Not by `new_group`: it names a group by how many a process has, which ranks may not share.
        digest = xxhash.xxh3_64_hexdigest(repr(ranks).encode())
        name = f"shardkeep/wire/{digest}/{_next_number(ranks)}"
        torch_names = cast("Any", dist)
        made = torch_names.ProcessGroupGloo(
            torch_names.PrefixStore(name, default_store()),
            ranks.index(outer.me),
            len(ranks),
            timeout=self._timeout,
        )
        return RankGroup(made, ranks, outer.me)


_numbers: weakref.WeakKeyDictionary[Any, Counter[tuple[int, ...]]] = weakref.WeakKeyDictionary()


def _next_number(ranks: tuple[int, ...]) -> int:
    """The same on all ranks, who connect together: how often they have, in this world."""
    counts = _numbers.setdefault(dist.group.WORLD, Counter())
    counts[ranks] += 1
    return counts[ranks]


_wires: dict[tuple[int, ...], Wire] = {}


def wire_of(group: Any, *, timeout: float) -> Wire | None:
    """The wire that all loads of these ranks share; None if there is no process group for one."""
    if isinstance(group, SoloCouncil | StoreCouncil):
        return None
    ranks = RankGroup.of(group)
    if ranks.size == 1:
        return None
    if not dist.is_initialized():
        return Wire(group, timeout=timeout)
    return _wires.setdefault(ranks.ranks, Wire(group, timeout=timeout))

"""Which council does a process group make?"""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from typing import Any, cast

import torch.distributed as dist
import xxhash

from shardkeep.ranks import RankGroup
from shardkeep.transfer.council import Council, NoteStore, SoloCouncil, StoreCouncil

_lock = threading.Lock()
_numbers: defaultdict[str, itertools.count[int]] = defaultdict(itertools.count)


def council_of(group: Any, *, act: str, timeout: float) -> Council:
    """The ranks of `group` (None: the default group, or this process alone) for one act.

    A council that was made by hand is taken as it is. SPMD: ranks call in the same order.
    """
    if isinstance(group, SoloCouncil | StoreCouncil):
        return group
    ranks = RankGroup.of(group)
    if ranks.size == 1:
        return SoloCouncil(ranks.me)
    store = cast("NoteStore", _default_store())
    return StoreCouncil(
        store, ranks.ranks, ranks.me, topic=_topic(ranks.ranks, act), timeout=timeout
    )


def _default_store() -> object:
    # The Store of the default group: the one that torchrun's ranks already share.
    return cast("Any", dist.distributed_c10d)._get_default_store()


def _topic(ranks: tuple[int, ...], act: str) -> str:
    """A name that all ranks of the group arrive at, and none of their other acts has."""
    who = xxhash.xxh3_64_hexdigest(repr(ranks).encode())
    with _lock:
        return f"shardkeep/{act}/{who}/{next(_numbers[f'{act}/{who}'])}"

"""Which council does a process group make?"""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import msgspec
import torch.distributed as dist
import xxhash

from shardkeep.ranks import RankGroup
from shardkeep.transfer.bounded_store import NoteStore
from shardkeep.transfer.common_step import CommonStep, SoloStep, StoreStep
from shardkeep.transfer.council import Council, SoloCouncil, StoreCouncil

T = TypeVar("T")
_lock = threading.Lock()
_numbers: defaultdict[str, itertools.count[int]] = defaultdict(itertools.count)


def council_of(group: Any, *, act: str, timeout: float, topic: str | None = None) -> Council:
    """The ranks of `group` (None: the default group, or this process alone) for one act.

    A council that was made by hand is taken as it is. SPMD: ranks call in the same order, unless
    they name a topic that no other act has.
    """
    if isinstance(group, SoloCouncil | StoreCouncil):
        return group
    ranks = RankGroup.of(group)
    if ranks.size == 1:
        return SoloCouncil(ranks.me)
    store = cast("NoteStore", default_store())
    topic = f"shardkeep/{act}/{topic}" if topic is not None else _topic(ranks.ranks, act)
    return StoreCouncil(store, ranks.ranks, ranks.me, topic=topic, timeout=timeout)


def chair_of(group: Any) -> int:
    """The rank that speaks for the group."""
    return min(RankGroup.of(group).ranks)


def common_step(group: Any, *, look: Callable[[], str | None], timeout: float) -> CommonStep:
    """Where the group's ranks come together to act. SPMD: ranks call in the same order."""
    ranks = RankGroup.of(group)
    if ranks.size == 1:
        return SoloStep()
    store = cast("NoteStore", default_store())
    topic = _topic(ranks.ranks, "step")
    return StoreStep(store, ranks.ranks, ranks.me, topic=topic, timeout=timeout, look=look)


@contextmanager
def told(group: Any, *, act: str, timeout: float) -> Generator[None]:
    """What fails on this rank before an act begins makes the act fail on all.

    Else the others would wait for it, and this rank would be one act behind them for ever.
    """
    try:
        yield
    except BaseException as error:
        council = council_of(group, act=act, timeout=timeout)
        council.fail(act, error, undone=True)
        council.leave(done=False)
        raise


@contextmanager
def heard_by_all(council: Council, phase: str) -> Generator[None]:
    """What goes wrong on this rank alone is heard by all, so that nobody waits for it."""
    try:
        yield
    except BaseException as error:
        council.fail(phase, error, undone=True)
        council.leave(done=False)
        raise


def from_chair(council: Council, phase: str, act: Callable[[], T], kind: type[T]) -> T:
    """What `act` returned on the chair, heard by all ranks; if it fails, all raise."""
    try:
        if council.me == council.chair:
            council.announce(phase, msgspec.json.encode(act()))
        found = msgspec.json.decode(council.hear(phase), type=kind)
    except BaseException as error:
        council.fail(phase, error, undone=True)
        council.leave(done=False)
        raise
    council.leave(done=True)
    return found


def default_store() -> Any:
    """What the ranks of the default group share."""
    # The Store of the default group: the one that torchrun's ranks already share.
    return cast("Any", dist.distributed_c10d)._get_default_store()


def _topic(ranks: tuple[int, ...], act: str) -> str:
    """A name that all ranks of the group arrive at, and none of their other acts has."""
    who = xxhash.xxh3_64_hexdigest(repr(ranks).encode())
    with _lock:
        return f"shardkeep/{act}/{who}/{next(_numbers[f'{act}/{who}'])}"

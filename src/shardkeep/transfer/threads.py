"""How many threads does a rank work with, unless it is told?"""

from __future__ import annotations

import os

from shardkeep.errors import InvalidError

# More write or read no faster: two keep a file system and the memory busy.
_MOST = 2


def core_count() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def thread_count(asked: int | None) -> int:
    """As many as were asked for; else two, or one where each rank of the host has one core."""
    if asked is None:
        return max(1, min(_MOST, core_count() // _ranks_here()))
    if asked < 1:
        raise InvalidError(f"threads must be at least 1, got {asked}")
    return asked


def _ranks_here() -> int:
    """The ranks that torchrun has started on this host."""
    said = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(said)) if said.isdecimal() else 1

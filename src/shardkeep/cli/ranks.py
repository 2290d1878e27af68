"""Which of how many processes is this one?

Only `torchrun -m shardkeep` starts several for one command. A `shardkeep` that a training job
calls finds the job's ranks in its environment, too, and must not take them for its own.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from shardkeep.transfer.team import Team

SHARED = ("show", "verify", "diff", "export", "import")
"""The commands whose work ranks share; of the others rank 0 alone does it."""


class Launch(NamedTuple):
    """This process among those that were started together."""

    rank: int = 0
    size: int = 1
    on_this_host: int = 1


_launch = Launch()


def read_launch() -> None:
    """Take note of what torchrun says; for `python -m shardkeep` only."""
    global _launch
    if "TORCHELASTIC_RUN_ID" in os.environ:
        names = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
        _launch = Launch(*(int(os.environ[name]) for name in names))


def launch() -> Launch:
    """This process; alone unless torchrun started it."""
    return _launch


def this_team() -> Team:
    """The processes that share this command's work."""
    from shardkeep.transfer.team import join_team
    from shardkeep.transfer.threads import core_count

    threads = max(1, core_count() // _launch.on_this_host)
    return join_team(_launch.rank, _launch.size, threads)

"""How long are saves waited for when an error has ended a run?"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable

from shardkeep.transfer.due import Due
from shardkeep.transfer.signals import SAVE_AND_STOP
from shardkeep.transfer.under_way import UnderWay

_log = logging.getLogger("shardkeep")

# How long saves may still take when the block was left by an error and SIGTERM came.
_LAST_SECONDS = 5.0
_POLL_SECONDS = 0.02


def wait_or_die(
    due: Due, under_way: UnderWay, is_idle: Callable[[], bool], error: BaseException
) -> None:
    """Wait for saves under way; once SIGTERM came, not for long, and then let it do its work.

    A rank that was killed often is the reason for all this, and no save ends without it.
    `is_idle` tells of what follows the saves.
    """
    deadline: float | None = None
    while due.watches_signals and (under_way.steps or not is_idle()):
        if due.has_to_stop:
            deadline = deadline or time.monotonic() + _LAST_SECONDS
            if time.monotonic() > deadline:
                _die(due, under_way, error)
        time.sleep(_POLL_SECONDS)


def _die(due: Due, under_way: UnderWay, error: BaseException) -> None:
    said = f"SIGTERM: the saves of steps {under_way.steps} are given up; what happened before:"
    _log.error("%s", said, exc_info=error)
    due.close()
    os.kill(os.getpid(), SAVE_AND_STOP)

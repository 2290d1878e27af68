"""What does a process do when it is told to save, or to save and stop?"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from shardkeep.errors import InvalidError

SAVE = signal.SIGUSR1
SAVE_AND_STOP = signal.SIGTERM


class SignalWatch:
    """Remembers that SIGUSR1 or SIGTERM came, instead of dying of it.

    A second SIGTERM does what it did before: a process that hangs can still be ended.
    """

    def __init__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise InvalidError("signals can be watched from the main thread only")
        self._pending: list[str] = []
        self._before: dict[signal.Signals, Any] = {
            number: signal.signal(number, self._remember) for number in (SAVE, SAVE_AND_STOP)
        }

    def _remember(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if number == SAVE_AND_STOP:
            signal.signal(number, self._before[SAVE_AND_STOP])
        if name not in self._pending:
            self._pending.append(name)

    def take(self) -> str | None:
        """The name of a signal that came, once."""
        return self._pending.pop(0) if self._pending else None

    def close(self) -> None:
        """Signals do again what they did before."""
        for number, before in self._before.items():
            restore: Callable[..., Any] | int | None = before
            signal.signal(number, restore if restore is not None else signal.SIG_DFL)

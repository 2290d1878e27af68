"""What does a process do when it is told to save, or to save and stop?"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

from shardkeep.errors import InvalidError

SAVE = signal.SIGUSR1
SAVE_AND_STOP = signal.SIGTERM


class SignalWatch:
    """Remembers that SIGUSR1 or SIGTERM came, instead of dying of it.

    As often as it comes: where a scheduler signals every process, torchrun's workers get a second
    SIGTERM from torchrun, in the middle of the save. A process that hangs is ended by SIGKILL.
    """

    def __init__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise InvalidError("signals can be watched from the main thread only")
        self._pending: list[str] = []
        self.has_to_stop = False
        """Whether SIGTERM ever came."""
        self._owner = os.getpid()
        self._before: dict[int, Any] = {
            number: signal.signal(number, self._remember) for number in (SAVE, SAVE_AND_STOP)
        }

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._owner:
            # A forked child saves nothing: it must still die when it is told to.
            self._give_back(number)
            os.kill(os.getpid(), number)
            return
        self.has_to_stop = self.has_to_stop or number == SAVE_AND_STOP
        name = signal.Signals(number).name
        if name not in self._pending:
            self._pending.append(name)

    def take(self) -> str | None:
        """The name of a signal that came, once."""
        return self._pending.pop(0) if self._pending else None

    def close(self) -> None:
        """Signals do again what they did before."""
        for number in self._before:
            self._give_back(number)

    def _give_back(self, number: int) -> None:
        before = self._before[number]
        # None: a handler that was not set by Python, and cannot be set by it.
        signal.signal(number, signal.SIG_DFL if before is None else before)

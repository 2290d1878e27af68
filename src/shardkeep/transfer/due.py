"""When is a checkpoint of a run due: after so many steps, so much time, or at a signal?"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any

from shardkeep.errors import InvalidError
from shardkeep.transfer.common_step import CommonStep, SoloStep
from shardkeep.transfer.groups import common_step
from shardkeep.transfer.signals import SAVE_AND_STOP, SignalWatch

_log = logging.getLogger("shardkeep")

_TIMER = "timer"


@dataclass(frozen=True, slots=True)
class Every:
    """How often to save; without either, only when told."""

    steps: int | None
    seconds: float | None

    def __post_init__(self) -> None:
        if self.steps is not None and self.steps < 1:
            raise InvalidError(f"every_steps must be at least 1, got {self.steps}")
        if self.seconds is not None and self.seconds <= 0:
            raise InvalidError(f"every_seconds must be positive, got {self.seconds}")

    @property
    def is_regular(self) -> bool:
        """Whether saves come by themselves."""
        return self.steps is not None or self.seconds is not None


class Due:
    """Says after each step whether to save, the same on all ranks of `group`.

    With `on_signal`, it watches for signals until it is closed.
    """

    def __init__(
        self, every: Every, *, on_signal: bool, is_chair: bool, group: Any, timeout: float
    ) -> None:
        self._every = every
        self._is_chair = is_chair
        self._last_time = time.monotonic()
        self.is_stopping = False
        """Whether SIGTERM was among the reasons of a save."""
        self._signals = SignalWatch() if on_signal else None
        self._common: CommonStep = SoloStep()
        if on_signal or every.seconds is not None:
            self._common = common_step(group, look=self._look, timeout=min(timeout, 300.0))

    def after(self, step: int) -> bool:
        """Whether a checkpoint is due after `step`. Once after each step, on every rank."""
        reasons = self._common_reasons()
        if reasons and reasons != [_TIMER] and self._is_chair:
            _log.warning("%s: saving a checkpoint at step %d", ", ".join(reasons), step)
        self.is_stopping = self.is_stopping or SAVE_AND_STOP.name in reasons
        is_due = self._every.steps is not None and step % self._every.steps == 0
        return is_due or bool(reasons)

    def _common_reasons(self) -> list[str]:
        while isinstance(self._common, SoloStep) and (reason := self._look()) is not None:
            self._common.ask(reason)
        return list(self._common.decide())

    def _look(self) -> str | None:
        """What asks for a checkpoint now, on this rank."""
        found = self._signals.take() if self._signals is not None else None
        if found is not None or self._every.seconds is None:
            return found
        if self._is_chair and time.monotonic() - self._last_time > self._every.seconds:
            self._last_time = time.monotonic()
            return _TIMER
        return None

    def saved(self) -> None:
        """The seconds until the next save count from now on."""
        self._last_time = time.monotonic()

    @property
    def watches_signals(self) -> bool:
        """Whether SIGTERM is only remembered now."""
        return self._signals is not None

    @property
    def has_to_stop(self) -> bool:
        """Whether SIGTERM came to this rank."""
        return self._signals is not None and self._signals.has_to_stop

    def leave(self) -> None:
        """The loop is over on this rank: no other is kept waiting for it."""
        self._common.close()

    def close(self) -> None:
        """Leave, and let signals do again what they did before."""
        self.leave()
        if self._signals is not None:
            self._signals.close()
            self._signals = None

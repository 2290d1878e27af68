"""By which clock do ranks wait for each other? The real one, unless time itself is simulated."""

from __future__ import annotations

import time


class Clock:
    """The time in seconds, and waiting in it."""

    def monotonic(self) -> float:
        """The present moment: it never goes back."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Return after so many seconds."""
        time.sleep(seconds)

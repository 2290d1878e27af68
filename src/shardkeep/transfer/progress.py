"""How does a long save or load show that it is getting on?

A callback if one is given; else a bar, if a person is watching and it takes longer than a moment.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

Progress = Callable[[int, int], None]
"""Called with the bytes done and the bytes in all."""

_MOMENT = 1.0


class Meter:
    """Adds up bytes from several threads and shows them. Use it in `with`."""

    def __init__(self, what: str, progress: Progress | None, *, show: bool) -> None:
        self._what = what
        self._progress = progress
        self._show = show and progress is None and sys.stderr.isatty()
        self._total = self._done = 0
        self._start = time.monotonic()
        self._lock = threading.Lock()
        self._bar: Any = None

    def expect(self, nbytes: int) -> None:
        """So many bytes more are to come."""
        with self._lock:
            self._total += nbytes

    def add(self, nbytes: int) -> None:
        """So many bytes more are done."""
        with self._lock:
            self._done += nbytes
            if self._progress is not None:
                self._progress(self._done, self._total)
            elif self._show and time.monotonic() - self._start > _MOMENT:
                self._draw()

    def _draw(self) -> None:
        if self._bar is None:
            self._bar = _bar()
            self._task = self._bar.add_task(self._what, total=self._total)
            self._bar.start()
        self._bar.update(self._task, completed=self._done, total=self._total)

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress as RichProgress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    return RichProgress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )

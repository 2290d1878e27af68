"""How long did each phase of a save take?"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class Timings:
    """Seconds spent in each phase."""

    seconds: dict[str, float] = field(default_factory=dict[str, float])
    clock: Callable[[], float] = time.perf_counter

    @contextmanager
    def phase(self, name: str) -> Generator[None]:
        start = self.clock()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + self.clock() - start

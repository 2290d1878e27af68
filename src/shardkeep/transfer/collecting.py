"""When does Python's garbage collector have nothing to find?"""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Generator[None]:
    """Make many objects that all stay, without the collector looking through them meanwhile.

    For computation only, never around a wait: the pause is the whole process's. Where threads
    overlap, the first to end ends it, which costs time and nothing else.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()

"""How does a checkpoint of 100,000 tensors answer the second question faster than the first?

It stays open, for as long as it is what it was and a few others are not wanted instead.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from shardkeep.manifest import MANIFEST_NAME
from shardkeep.transfer.opened import Opened
from shardkeep.view.opening import opened_checkpoint

_MOST = 8

Stamp = tuple[int, ...]


@dataclass(slots=True, eq=False)
class _Kept:
    path: Path
    stamp: Stamp
    opened: Opened
    closing: ExitStack
    users: int = 0
    dropped: bool = field(default=False)


class KeptOpen:
    """The checkpoints that were asked for last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[_Kept] = []

    @contextmanager
    def lease(self, path: Path) -> Generator[Opened]:
        """The checkpoint as it is now; open at least until the end of the block."""
        with self._lock:
            kept = self._find(path)
            kept.users += 1
        try:
            yield kept.opened
        finally:
            with self._lock:
                kept.users -= 1
                self._close_unused(kept)

    def _find(self, path: Path) -> _Kept:
        stamp = _stamp(path)
        found = next((k for k in self._kept if (k.path, k.stamp) == (path, stamp)), None)
        if found is None:
            closing = ExitStack()
            found = _Kept(path, stamp, closing.enter_context(opened_checkpoint(path)), closing)
        others = [one for one in self._kept if one is not found]
        # What was replaced meanwhile is of no use any more.
        stale = [one for one in others if one.path == path]
        fresh = [one for one in others if one.path != path]
        self._kept = [*fresh, found][-_MOST:]
        for one in [*stale, *(one for one in fresh if one not in self._kept)]:
            one.dropped = True
            self._close_unused(one)
        return found

    def _close_unused(self, kept: _Kept) -> None:
        if kept.dropped and not kept.users:
            kept.closing.close()

    def close(self) -> None:
        """Close all that nobody uses."""
        with self._lock:
            for one in self._kept:
                one.dropped = True
                self._close_unused(one)
            self._kept = []


def _stamp(path: Path) -> Stamp:
    """What changes when another save takes the checkpoint's place."""
    for file in (path / MANIFEST_NAME, path):
        try:
            found = file.stat()
        except OSError:
            continue
        return found.st_mtime_ns, found.st_ino, found.st_size
    return ()

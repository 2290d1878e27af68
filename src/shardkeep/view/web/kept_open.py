"""How does a checkpoint of 100,000 tensors answer the second question faster than the first?

It stays open, for as long as it is what it was and a few others are not wanted instead.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from shardkeep.errors import NotFoundError
from shardkeep.manifest import MANIFEST_NAME
from shardkeep.storage import Storage, open_storage
from shardkeep.transfer.opened import Opened
from shardkeep.view.opening import opened_checkpoint
from shardkeep.view.places import Place

_MOST = 8
# So far into a manifest, its save's id has been told.
_HEAD_NBYTES = 64

Stamp = tuple[int, ...] | bytes


@dataclass(slots=True, eq=False)
class _Kept:
    path: Place
    stamp: Stamp
    opened: Opened
    closing: ExitStack
    users: int = 0
    dropped: bool = field(default=False)


class KeptOpen:
    """The checkpoints that were asked for last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # One for each place: what takes long to open stands in nobody's way but its own.
        self._opening: defaultdict[Place, threading.Lock] = defaultdict(threading.Lock)
        self._kept: list[_Kept] = []

    @contextmanager
    def lease(self, path: Place) -> Generator[Opened]:
        """The checkpoint as it is now; open at least until the end of the block."""
        with self._lock:
            opening = self._opening[path]
        with opening:
            kept = self._find(path)
        try:
            yield kept.opened
        finally:
            with self._lock:
                kept.users -= 1
                self._close_unused(kept)

    def _find(self, path: Place) -> _Kept:
        with self._lock:
            before = next((one for one in self._kept if one.path == path), None)
        stamp = _stamp(path, before)
        found = before
        if found is None or found.stamp != stamp:
            closing = ExitStack()
            found = _Kept(path, stamp, closing.enter_context(opened_checkpoint(path)), closing)
        with self._lock:
            found.users += 1
            self._keep(found)
        return found

    def _keep(self, found: _Kept) -> None:
        others = [one for one in self._kept if one is not found]
        # What was replaced meanwhile is of no use any more.
        stale = [one for one in others if one.path == found.path]
        fresh = [one for one in others if one.path != found.path]
        self._kept = [*fresh, found][-_MOST:]
        for one in [*stale, *(one for one in fresh if one not in self._kept)]:
            one.dropped = True
            self._close_unused(one)

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


def _stamp(path: Place, kept: _Kept | None) -> Stamp:
    """What changes when another save takes the checkpoint's place."""
    if isinstance(path, str):
        return _stamp_of_url(path, kept.opened.storage if kept is not None else None)
    for file in (path / MANIFEST_NAME, path):
        try:
            found = file.stat()
        except OSError:
            continue
        return found.st_mtime_ns, found.st_ino, found.st_size
    return ()


def _stamp_of_url(url: str, known: object) -> Stamp:
    """The first bytes of the manifest: the id of the save, for one small request."""
    with ExitStack() as closing:
        if not isinstance(known, Storage):
            known = closing.enter_context(open_storage(url, create=False, durable=False))
        try:
            return known.read(MANIFEST_NAME, 0, _HEAD_NBYTES)
        except NotFoundError:
            return b""

"""Which files stay open between reads?

The last few that were read, so that reading one file in many pieces opens it once. A file that a
thread reads from is closed only after the read, however many others push it out.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from shardkeep.storage.file_calls import FileCalls
from shardkeep.storage.folder import Folder


@dataclass(slots=True)
class _OpenFile:
    fd: int
    identity: tuple[int, int]
    users: int = 1
    is_kept: bool = True


class OpenFiles:
    """Regular files of `folder`, open for reading; at most `limit` without a user."""

    def __init__(self, folder: Folder, *, limit: int) -> None:
        self._folder = folder
        self._limit = limit
        self._lock = threading.Lock()
        self._files: OrderedDict[str, _OpenFile] = OrderedDict()
        # Also for those who forget to close; nobody can be reading then.
        weakref.finalize(self, _close_all, self._files, folder.calls).atexit = False

    @contextmanager
    def borrow(self, key: str) -> Generator[int]:
        """The descriptor of the file that `key` names now; for positional reads only."""
        file = self._reuse(key) or self._open(key)
        try:
            yield file.fd
        finally:
            with self._lock:
                file.users -= 1
                self._close_if_unused(file)

    def forget(self, key: str) -> None:
        """Keep `key` open no longer: a removed file takes space as long as it is open."""
        with self._lock:
            self._forget(key)

    def close(self) -> None:
        """Keep no file open."""
        with self._lock:
            for key in list(self._files):
                self._forget(key)

    def _reuse(self, key: str) -> _OpenFile | None:
        with self._lock:
            file = self._files.get(key)
        if file is None:
            return None
        found = self._folder.status(key)
        with self._lock:
            # The name may stand for another file by now, or this one be closed by another thread.
            if self._files.get(key) is not file or file.identity != (found.st_dev, found.st_ino):
                return None
            self._files.move_to_end(key)
            file.users += 1
            return file

    def _open(self, key: str) -> _OpenFile:
        fd, found = self._folder.open_regular(key)
        file = _OpenFile(fd, (found.st_dev, found.st_ino))
        with self._lock:
            self._forget(key)
            self._files[key] = file
            while len(self._files) > self._limit:
                self._forget(next(iter(self._files)))
        return file

    def _forget(self, key: str) -> None:
        file = self._files.pop(key, None)
        if file is not None:
            file.is_kept = False
            self._close_if_unused(file)

    def _close_if_unused(self, file: _OpenFile) -> None:
        if not file.is_kept and file.users == 0:
            _close(file, self._folder.calls)


def _close(file: _OpenFile, calls: FileCalls) -> None:
    with suppress(OSError):
        calls.close(file.fd)


def _close_all(files: OrderedDict[str, _OpenFile], calls: FileCalls) -> None:
    while files:
        _close(files.popitem()[1], calls)

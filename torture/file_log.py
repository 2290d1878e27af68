"""Which operations does a save ask the file system for, in which order?"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from shardkeep.storage.file_calls import FileCalls


@dataclass(frozen=True, slots=True)
class Name:
    """A name in a folder comes to mean an object; None: it is gone. `gone` goes at once with it."""

    folder: int
    name: str
    object: int | None
    gone: str | None = None


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes of a file change."""

    object: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Cut:
    """A file has this size from here on."""

    object: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Sync:
    """What was asked of a file or folder before operation `upto` is durable from here on."""

    object: int
    upto: int


@dataclass(frozen=True, slots=True)
class Ack:
    """The caller was told that this version is safe."""

    version: int


Operation = Name | Write | Cut | Sync | Ack


class Recorder(FileCalls):
    """Real calls on everything below `base`, which become a log. Threads may share it."""

    def __init__(self, base: str) -> None:
        self.base = base
        self.log: list[Operation] = []
        self.folders: set[int] = set()
        self._lock = threading.RLock()
        self._numbers: dict[tuple[int, int], int] = {}
        self._count = 0
        self.root = self._number_of_path(base)
        self.folders.add(self.root)

    def ack(self, version: int) -> None:
        """The save of this version has returned."""
        with self._lock:
            self.log.append(Ack(version))

    def open(self, name: str, flags: int, *, dir_fd: int | None = None) -> int:
        with self._lock:
            fd = super().open(name, flags, dir_fd=dir_fd)
            if flags & os.O_CREAT and dir_fd is not None:
                number = self._fresh(os.fstat(fd))
                self.log.append(Name(self._number(os.fstat(dir_fd)), name, number))
            return fd

    def pwritev(self, fd: int, views: Sequence[memoryview], offset: int) -> int:
        moved = super().pwritev(fd, views, offset)
        with self._lock:
            data = b"".join(views)[:moved]
            self.log.append(Write(self._number(os.fstat(fd)), offset, data))
        return moved

    def fsync(self, fd: int) -> None:
        with self._lock:
            upto = len(self.log)
        super().fsync(fd)
        with self._lock:
            self.log.append(Sync(self._number(os.fstat(fd)), upto))

    def link(self, name: str, new_name: str, *, dir_fd: int) -> None:
        with self._lock:
            super().link(name, new_name, dir_fd=dir_fd)
            self._log_name(new_name, dir_fd, None)

    def rename(self, name: str, new_name: str, *, dir_fd: int) -> None:
        with self._lock:
            super().rename(name, new_name, dir_fd=dir_fd)
            self._log_name(new_name, dir_fd, name)

    def move(self, name: str, new_name: str, *, dir_fd: int, new_dir_fd: int) -> None:
        with self._lock:
            super().move(name, new_name, dir_fd=dir_fd, new_dir_fd=new_dir_fd)
            # Two folders change, and nobody promises that they do at once.
            self._log_name(new_name, new_dir_fd, None)
            self.log.append(Name(self._number(os.fstat(dir_fd)), name, None))

    def truncate(self, fd: int, nbytes: int) -> None:
        with self._lock:
            super().truncate(fd, nbytes)
            self.log.append(Cut(self._number(os.fstat(fd)), nbytes))

    def unlink(self, name: str, *, dir_fd: int) -> None:
        with self._lock:
            super().unlink(name, dir_fd=dir_fd)
            self.log.append(Name(self._number(os.fstat(dir_fd)), name, None))

    def mkdir(self, path: str) -> None:
        with self._lock:
            super().mkdir(path)
            number = self._fresh(os.stat(path))
            self.folders.add(number)
            parent = self._number_of_path(os.path.dirname(path))
            self.log.append(Name(parent, os.path.basename(path), number))

    def _log_name(self, name: str, dir_fd: int, gone: str | None) -> None:
        number = self._number(os.stat(name, dir_fd=dir_fd, follow_symlinks=False))
        self.log.append(Name(self._number(os.fstat(dir_fd)), name, number, gone))

    def _number_of_path(self, path: str) -> int:
        return self._number(os.stat(path))

    def _number(self, found: os.stat_result) -> int:
        key = found.st_dev, found.st_ino
        return self._numbers[key] if key in self._numbers else self._fresh(found)

    def _fresh(self, found: os.stat_result) -> int:
        """A new object: the file system may have used its inode before."""
        self._count += 1
        self._numbers[found.st_dev, found.st_ino] = self._count
        return self._count

"""How does a shared folder behave whose calls take time and fail, and whose answers may be lost?"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from shardkeep.errors import ConflictError, NotFoundError, StorageError
from shardkeep.storage import OutcomeUnknownError
from shardkeep.storage.protocols import Entries, Entry
from shardkeep.storage.sinks import FinishOrAbort
from torture.sim_processes import Act, Fault, Process


@dataclass(slots=True)
class File:
    """A file, and who wrote it."""

    data: bytearray
    owner: Process | None
    is_complete: bool = False
    seen_from: float = 0.0
    """When others than its owner see it."""


class Disk:
    """The files of one folder. `watch(name, before, after)` hears of each change of a name."""

    def __init__(
        self,
        dice: Random,
        *,
        latency: float,
        delay: float = 0.0,
        watch: Callable[[Disk, str, File | None, File | None], None] = lambda *_: None,
    ) -> None:
        self.files: dict[str, File] = {}
        self._dice = dice
        self._latency = latency
        self.delay = delay
        """How much later other processes see a file."""
        self._watch = watch

    def seconds(self) -> float:
        """How long the next call takes."""
        random = self._dice.random()
        return self._latency * (0.3 + random if random < 0.98 else 20.0)

    def put(self, name: str, file: File | None) -> None:
        """A name comes to mean a file; None: it is gone."""
        before = self.files.pop(name, None)
        if file is not None:
            self.files[name] = file
        self._watch(self, name, before, file)

    def seen(self, name: str, process: Process) -> File | None:
        """The file as a process sees it."""
        file = self.files.get(name)
        if file is None or (file.owner is not process and process.hub.now < file.seen_from):
            return None
        return file


class DiskClient:
    """The folder as one process sees it: a Storage, as far as saves use it."""

    location = "/sim/checkpoint"

    def __init__(self, disk: Disk, process: Process) -> None:
        self._disk = disk
        self._process = process

    def open(self) -> Any:
        """The storage itself, opened, which may fail."""
        self.step("open", lambda: None)
        return self

    def get(self, key: str, *, max_nbytes: int) -> bytes:
        return self.step(f"read {key}", lambda: self._get(key))

    def _get(self, key: str) -> bytes:
        file = self._disk.seen(key, self._process)
        if file is None:
            raise NotFoundError(f"{key!r} is not there")
        return bytes(file.data)

    def list(self) -> Entries:
        return self.step("list", self._list)

    def _list(self) -> Entries:
        files, process = self._disk.files, self._process
        return [
            Entry(name, len(file.data))
            for name, file in files.items()
            if self._disk.seen(name, process)
        ]

    def create(self, key: str) -> SimSink:
        file = File(bytearray(), self._process)
        file.seen_from = self._process.hub.now + self._disk.delay

        def act() -> None:
            if key in self._disk.files:
                raise ConflictError(f"{key} is already there")
            self._disk.put(key, file)

        self.step(f"create {key}", act)
        return SimSink(self, self._disk, key, file)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        return self._commit(key, data, lambda: key not in self._disk.files)

    def replace(self, key: str, data: bytes, *, expected: bytes) -> bool:
        return self._commit(key, data, lambda: self._holds(key, expected))

    def _holds(self, key: str, expected: bytes) -> bool:
        file = self._disk.files.get(key)
        return file is not None and file.data == expected

    def _commit(self, key: str, data: bytes, may: Callable[[], bool]) -> bool:
        def act() -> bool:
            if not may():
                return False
            self._disk.put(key, File(bytearray(data), self._process, is_complete=True))
            return True

        return self._process.step(
            f"put {key}", self._disk.seconds(), act, lambda fault: self._lost(fault, act)
        )

    def _lost(self, fault: Fault, act: Act) -> tuple[float, Act]:
        """A commit goes wrong: not done, done, or nobody knows."""
        kind = fault.variant % 4
        if kind == 1:
            act()
        if kind == 2:
            self._process.hub.at(self._process.hub.now + fault.seconds, None, act)

        def fail() -> None:
            if kind == 0:
                raise StorageError(errno.EIO, "planted, and not done", "/sim")
            raise OutcomeUnknownError(errno.EIO, "planted, the outcome is unknown", "/sim")

        return self._disk.seconds(), fail

    def delete(self, key: str, *, missing_ok: bool = False) -> None:
        def act() -> None:
            if key in self._disk.files:
                self._disk.put(key, None)
            elif not missing_ok:
                raise NotFoundError(f"{key!r} is not there")

        self.step(f"delete {key}", act)

    def sync(self) -> None:
        self.step("sync", lambda: None)

    def close(self) -> None:
        """Nothing to let go of."""

    def step(self, what: str, act: Act, *, or_not: bool = True) -> Any:
        """One call of the file system; an error may come although it was done, if `or_not`."""
        return self._process.step(
            what, self._disk.seconds(), act, lambda fault: self._eio(fault, act if or_not else None)
        )

    def _eio(self, fault: Fault, act: Act | None) -> tuple[float, Act]:
        def fail() -> None:
            if act is not None and fault.variant % 2:
                act()
            raise StorageError(errno.EIO, "planted", "/sim")

        return self._disk.seconds(), fail


class SimSink(FinishOrAbort):
    """A file being written: there at once, complete when it is finished."""

    def __init__(self, storage: DiskClient, disk: Disk, key: str, file: File) -> None:
        self._storage = storage
        self._disk = disk
        self._key = key
        self._file = file

    def write(self, offset: int, buffers: Sequence[Any]) -> None:
        data = b"".join(bytes(buffer) for buffer in buffers)
        self._storage.step(f"write {self._key}", lambda: self._write(offset, data))

    def _write(self, offset: int, data: bytes) -> None:
        content = self._file.data
        content.extend(bytes(max(0, offset + len(data) - len(content))))
        content[offset : offset + len(data)] = data

    def finish(self) -> None:
        # After a failed fsync nothing of the file may be relied on.
        self._storage.step(f"finish {self._key}", self._finish, or_not=False)

    def _finish(self) -> None:
        self._file.is_complete = True

    def abort(self) -> None:
        if not self._file.is_complete:
            self._storage.step(f"abort {self._key}", self._abort)

    def _abort(self) -> None:
        if self._disk.files.get(self._key) is self._file:
            self._disk.put(self._key, None)

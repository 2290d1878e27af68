"""How do windows get from the ranks that read them to those that want them?

Every rank goes through its own windows in one order that all share, with a bounded number of bytes
under way: the first window that anybody still waits for has been posted by all its ends, so that
ranks cannot wait in a circle.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import torch

from shardkeep.errors import RankFailedError
from shardkeep.plan.sharing import SharedRead, Window
from shardkeep.ranks import RankGroup
from shardkeep.ranks.group import Messenger, Work
from shardkeep.transfer.read import Array

IN_FLIGHT_NBYTES = 64 * 1024 * 1024
_MAX_READERS = 16

ReadWindow = Callable[[Window, Array], None]
"""Fills memory with a window's bytes, which were checked."""
TakeWindow = Callable[[Window, Array], None]
"""Is given a window's bytes; the memory is used again afterwards."""


class BrokenOffError(Exception):
    """Raised in the thread that moves, when the act it belongs to is over."""


@dataclass(slots=True)
class Moved:
    """What one rank did."""

    nbytes_read: int = 0
    nbytes_received: int = 0


@dataclass(slots=True)
class _Flight:
    """A window under way to this rank, or through it."""

    shared: SharedRead
    room: torch.Tensor
    memory: torch.Tensor
    """The part of the room that the window needs."""
    read: Future[None] | None
    arrival: Work | None
    sends: dict[int, Work] = field(default_factory=dict[int, Work])
    """By the rank that it goes to."""


class Pump:
    """Moves this rank's windows; `stop` ends it between two of them."""

    def __init__(
        self, group: RankGroup, read: ReadWindow, take: TakeWindow, *, stop: threading.Event
    ) -> None:
        self._group = group
        self._read = read
        self._take = take
        self._stop = stop
        self._free: list[torch.Tensor] = []
        self._nbytes_in_flight = 0
        self.moved = Moved()
        self.finished = 0
        """Windows so far."""
        self.awaited: int | None = None
        """The rank that a window is to come from now."""

    def run(self, tasks: Sequence[SharedRead], *, threads: int, tag: int) -> Moved:
        """Carry out `tasks`, which are those in which this rank has a part, in order."""
        flights: deque[_Flight] = deque()
        pool = ThreadPoolExecutor(min(_MAX_READERS, max(threads, 1)), "shardkeep-share")
        try:
            for task in tasks:
                while flights and self._is_full(task.window.nbytes):
                    self._finish(flights.popleft(), tag)
                flights.append(self._start(task, pool, tag))
            while flights:
                self._finish(flights.popleft(), tag)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        return self.moved

    def _is_full(self, more_nbytes: int) -> bool:
        return self._nbytes_in_flight + more_nbytes > IN_FLIGHT_NBYTES

    def _start(self, task: SharedRead, pool: ThreadPoolExecutor, tag: int) -> _Flight:
        room = self._room(task.window.nbytes)
        memory = room[: task.window.nbytes]
        self._nbytes_in_flight += task.window.nbytes
        if task.reader == self._group.me:
            read = pool.submit(self._read, task.window, memory.numpy())
            return _Flight(task, room, memory, read, None)
        return _Flight(task, room, memory, None, self._receive(memory, task.reader, tag))

    def _room(self, nbytes: int) -> torch.Tensor:
        room = self._free.pop() if self._free else None
        if room is None or room.nbytes < nbytes:
            room = torch.empty(nbytes, dtype=torch.uint8)
        return room

    def _finish(self, flight: _Flight, tag: int) -> None:
        window, reader, takers = flight.shared
        me = self._group.me
        if flight.read is not None:
            flight.read.result()
            self.moved.nbytes_read += window.nbytes
            flight.sends = {to: self._send(flight.memory, to, tag) for to in takers if to != me}
        elif flight.arrival is not None:
            self.awaited = reader
            _wait(flight.arrival, reader)
            self.awaited = None
            self.moved.nbytes_received += window.nbytes
        if self._stop.is_set():
            # What is taken now would change memory that is the caller's again.
            raise BrokenOffError
        if me in takers:
            self._take(window, flight.memory.numpy())
        for to, work in flight.sends.items():
            _wait(work, to)
        self.finished += 1
        self._nbytes_in_flight -= window.nbytes
        self._free.append(flight.room)

    def _send(self, memory: torch.Tensor, rank: int, tag: int) -> Work:
        try:
            return self._messenger.send([memory], self._group.index_of(rank), tag)
        except RuntimeError as error:
            raise _gone(rank, error) from error

    def _receive(self, memory: torch.Tensor, rank: int, tag: int) -> Work:
        try:
            return self._messenger.recv([memory], self._group.index_of(rank), tag)
        except RuntimeError as error:
            raise _gone(rank, error) from error

    @property
    def _messenger(self) -> Messenger:
        if self._group.messenger is None:
            raise RuntimeError("a single process has nobody to send to")
        return self._group.messenger


def _wait(work: Work, rank: int) -> None:
    try:
        work.wait()
    except RuntimeError as error:
        raise _gone(rank, error) from error


def _gone(rank: int, error: RuntimeError) -> RankFailedError:
    return RankFailedError({rank: f"no bytes came through ({error})"}, "load (share)")

"""How do windows get from the ranks that read them to those that want them?

Every rank goes through its own windows in one order that all share, with a bounded number of bytes
under way: the first window that anybody still waits for has been posted by all its ends, so that
ranks cannot wait in a circle. What one rank alone wants, and has at hand, concerns nobody else: it
is read beside, in any order.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

import torch

from shardkeep.errors import RankFailedError
from shardkeep.plan.sharing import SharedRead, Window
from shardkeep.ranks import RankGroup
from shardkeep.ranks.group import Work
from shardkeep.ranks.neighbours import Line, is_worth_reading, neighbours_of
from shardkeep.transfer.read import Array

IN_FLIGHT_NBYTES = 64 * 1024 * 1024
_MAX_READERS = 16
# Windows that were used here and may still be on their way to others.
_MAX_SENT = 3
_offered_for_ever: list[torch.Tensor] = []


class WindowActs(Protocol):
    """What a rank does with windows of files; threads call it at the same time."""

    def read(self, window: Window, memory: Array) -> None:
        """Fill memory with a window's bytes, checked."""
        ...

    def take(self, window: Window, data: Array) -> None:
        """Use a window's bytes; the memory is used again afterwards."""
        ...

    def stands_alone(self, window: Window) -> bool:
        """Whether its bytes can be used before those of windows in front of it."""
        ...

    def read_alone(self, window: Window) -> Array | None:
        """The bytes of a window that stands alone, to be taken; None if that is done."""
        ...


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

    def __init__(self, group: RankGroup, acts: WindowActs, *, stop: threading.Event) -> None:
        self._group = group
        self._acts = acts
        self._stop = stop
        self._near = neighbours_of(group)
        self._free: list[torch.Tensor] = []
        self._nbytes_in_flight = 0
        self.moved = Moved()
        self.finished = 0
        """Grows with every window."""
        self.awaited: int | None = None
        """The rank that a window is to come from now."""

    def run(self, tasks: Sequence[SharedRead], *, threads: int, tag: int) -> Moved:
        """Carry out `tasks`, which are those in which this rank has a part, in order."""
        alone = [task.window for task in tasks if self._is_alone(task)]
        threads = min(_MAX_READERS, max(threads, 1))
        beside = ThreadPoolExecutor(threads, "shardkeep-read")
        try:
            reads = [beside.submit(self._read_alone, window) for window in alone]
            self._pump([task for task in tasks if not self._is_alone(task)], threads, tag)
            for read in reads:
                self.moved.nbytes_read += read.result()
        except BaseException:
            self._stop.set()
            raise
        finally:
            beside.shutdown(wait=False, cancel_futures=True)
        return self.moved

    def _is_alone(self, task: SharedRead) -> bool:
        me = self._group.me
        return task.reader == me and task.takers == (me,) and self._acts.stands_alone(task.window)

    def _read_alone(self, window: Window) -> int:
        data = self._acts.read_alone(window)
        self._require_going()
        if data is not None:
            self._acts.take(window, data)
        self.finished += 1
        return window.nbytes

    def _pump(self, tasks: Sequence[SharedRead], threads: int, tag: int) -> None:
        flights: deque[_Flight] = deque()
        sent: deque[_Flight] = deque()
        pool = ThreadPoolExecutor(threads, "shardkeep-share")
        try:
            self._meet(tasks)
            for task in tasks:
                while self._is_full(task.window.nbytes) and (sent or flights):
                    self._go_on(flights, sent, tag)
                flights.append(self._start(task, pool, tag))
            while sent or flights:
                self._go_on(flights, sent, tag)
        except BaseException:
            # A neighbour may be about to read it, and must not find anything else there.
            _offered_for_ever.extend(flight.room for flight in (*flights, *sent))
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _meet(self, tasks: Sequence[SharedRead]) -> None:
        """Find out which of those with whom windows are shared can read the other's memory."""
        me, to, of = self._group.me, set[int](), set[int]()
        for window, reader, takers in tasks:
            if not is_worth_reading(window.nbytes):
                continue
            if reader == me:
                to.update(takers)
            else:
                of.add(reader)
        try:
            self._near.meet(self._group, sorted(to - {me}), sorted(of))
        except RuntimeError as error:
            peers = sorted(to | of)
            raise RankFailedError(
                dict.fromkeys(peers, f"no word came through ({error})"), "load (share)"
            ) from error

    def _go_on(self, flights: deque[_Flight], sent: deque[_Flight], tag: int) -> None:
        """One step: what is on its way to others gets there while the next window comes."""
        if flights and len(sent) < _MAX_SENT:
            self._use(flights[0], tag)
            sent.append(flights.popleft())
        else:
            self._finish(sent[0])
            sent.popleft()

    def _require_going(self) -> None:
        if self._stop.is_set():
            # What is taken now would change memory that is the caller's again.
            raise BrokenOffError

    def _is_full(self, more_nbytes: int) -> bool:
        return self._nbytes_in_flight + more_nbytes > IN_FLIGHT_NBYTES

    def _start(self, task: SharedRead, pool: ThreadPoolExecutor, tag: int) -> _Flight:
        room = self._room(task.window.nbytes)
        memory = room[: task.window.nbytes]
        self._nbytes_in_flight += task.window.nbytes
        if task.reader == self._group.me:
            read = pool.submit(self._acts.read, task.window, memory.numpy())
            return _Flight(task, room, memory, read, None)
        return _Flight(task, room, memory, None, self._receive(memory, task.reader, tag))

    def _room(self, nbytes: int) -> torch.Tensor:
        room = self._free.pop() if self._free else None
        if room is None or room.nbytes < nbytes:
            room = torch.empty(nbytes, dtype=torch.uint8)
        return room

    def _use(self, flight: _Flight, tag: int) -> None:
        """Pass the window on, and take it."""
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
        self._require_going()
        if me in takers:
            self._acts.take(window, flight.memory.numpy())

    def _finish(self, flight: _Flight) -> None:
        """Wait until it has been passed on; then its memory is free."""
        for to, work in flight.sends.items():
            _wait(work, to)
        self.finished += 1
        self._nbytes_in_flight -= flight.shared.window.nbytes
        self._free.append(flight.room)

    def _send(self, memory: torch.Tensor, rank: int, tag: int) -> Work:
        try:
            return self._line(rank, tag).offer(memory, rank, self._near)
        except RuntimeError as error:
            raise _gone(rank, error) from error

    def _receive(self, memory: torch.Tensor, rank: int, tag: int) -> Work:
        try:
            return self._line(rank, tag).fetch(memory, rank, self._near)
        except RuntimeError as error:
            raise _gone(rank, error) from error

    def _line(self, rank: int, tag: int) -> Line:
        if self._group.messenger is None:
            raise RuntimeError("a single process has nobody to send to")
        return Line(self._group.messenger, self._group.index_of(rank), tag)


def _wait(work: Work, rank: int) -> None:
    try:
        work.wait()
    except RuntimeError as error:
        raise _gone(rank, error) from error


def _gone(rank: int, error: RuntimeError) -> RankFailedError:
    return RankFailedError({rank: f"no bytes came through ({error})"}, "load (share)")

"""How do windows get from the ranks that read them to those that want them?

Every rank goes through its own windows in one order that all share, with a bounded number of bytes
under way: the first window that anybody still waits for has been posted by all its ends, so that
ranks cannot wait in a circle. What one rank alone wants, and has at hand, concerns nobody else: it
is read beside, in any order.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch

from shardkeep.errors import RankFailedError
from shardkeep.plan.sharing import SharedRead, Window
from shardkeep.ranks import RankGroup
from shardkeep.ranks.commons import commons_of, is_for_commons
from shardkeep.ranks.group import Work
from shardkeep.ranks.neighbours import Line
from shardkeep.storage.rooms import empty_room
from shardkeep.transfer.read import Array

T = TypeVar("T")

IN_FLIGHT_NBYTES = 64 * 1024 * 1024
_MAX_READERS = 16
# Windows that were used here and may still be on their way to others.
_MAX_SENT = 3
# What a neighbour holds takes no memory here.
_MAX_FLIGHTS = 64


class WindowActs(Protocol):
    """What a rank does with windows of files; threads call it at the same time."""

    @property
    def in_flight_nbytes(self) -> int:
        """How much memory windows may take that are under way."""
        ...

    @property
    def brings_memory(self) -> bool:
        """Whether what is read comes in memory of its own anyway; else memory is given."""
        ...

    def read(self, window: Window, memory: Array | None) -> Array:
        """A window's bytes, checked: in the memory given, else in memory of their own."""
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


@dataclass(frozen=True, slots=True)
class _Held:
    """Memory for a window's bytes."""

    data: Array
    place: int | None = None
    """Where it is in the memory that neighbours see, too; None if it is elsewhere."""

    @property
    def wire(self) -> torch.Tensor:
        """The same for messages."""
        return torch.frombuffer(self.data, dtype=torch.uint8)


@dataclass(slots=True)
class _Flight:
    """A window under way to this rank, or through it."""

    shared: SharedRead
    nbytes: int
    """What it takes of the memory for windows."""
    held: _Held | None = None
    """None for what a neighbour holds, or what came in memory of its own."""
    read: Future[Array] | None = None
    arrival: Work | None = None
    sends: dict[int, Work] = field(default_factory=dict[int, Work])
    """By the rank that it goes to."""


class _Here(Executor):
    """Does at once what it is asked to do: where there is one core, a thread more only waits."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        done: Future[T] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except BaseException as error:
            done.set_exception(error)
        return done


class Pump:
    """Moves this rank's windows; `stop` ends it between two of them."""

    def __init__(self, group: RankGroup, acts: WindowActs, *, stop: threading.Event) -> None:
        self._group = group
        self._acts = acts
        self._max_nbytes = acts.in_flight_nbytes
        self._stop = stop
        self._commons = commons_of(group)
        self._free: list[Array] = []
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
        pool = _Here() if threads == 1 else ThreadPoolExecutor(threads, "shardkeep-share")
        try:
            self._meet(tasks)
            for task in tasks:
                while self._is_full(task, len(flights)) and (sent or flights):
                    self._go_on(flights, sent, tag)
                flights.append(self._start(task, pool, tag))
            while sent or flights:
                self._go_on(flights, sent, tag)
            if self._commons.memory is not None:
                self._commons.memory.shrink()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _meet(self, tasks: Sequence[SharedRead]) -> None:
        """Find out with whom of those that windows are shared with memory is shared, too."""
        me, to, of = self._group.me, set[int](), set[int]()
        for window, reader, takers in tasks:
            if not is_for_commons(window.nbytes):
                continue
            if reader == me:
                to.update(takers)
            else:
                of.add(reader)
        try:
            self._commons.meet(self._group, sorted(to - {me}), sorted(of))
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

    def _is_full(self, task: SharedRead, count: int) -> bool:
        if self._is_held_near(task):
            return count >= _MAX_FLIGHTS
        is_over = self._nbytes_in_flight + task.window.nbytes > self._max_nbytes
        memory = self._commons.memory
        return count >= _MAX_FLIGHTS or is_over or (memory is not None and not memory.has_room)

    def _is_held_near(self, task: SharedRead) -> bool:
        """Whether another rank of this host has it in memory that is seen here."""
        reader, nbytes = task.reader, task.window.nbytes
        return reader != self._group.me and self._commons.shows(reader, nbytes)

    def _start(self, task: SharedRead, pool: Executor, tag: int) -> _Flight:
        window, reader, takers = task
        if self._is_held_near(task):
            return _Flight(task, 0, arrival=self._borrow(window, reader))
        self._nbytes_in_flight += window.nbytes
        if reader == self._group.me:
            held = None if self._acts.brings_memory else self._hold(window.nbytes, takers)
            read = pool.submit(self._acts.read, window, held.data if held else None)
            return _Flight(task, window.nbytes, held, read=read)
        held = self._hold(window.nbytes)
        arrival = self._receive(held.wire, reader, tag)
        return _Flight(task, window.nbytes, held, arrival=arrival)

    def _hold(self, nbytes: int, takers: Sequence[int] = ()) -> _Held:
        """Memory for so many bytes, such that those of the takers see it who can."""
        memory, me = self._commons.memory, self._group.me
        is_seen = any(rank != me and self._commons.sees_mine(rank, nbytes) for rank in takers)
        if is_seen and memory is not None:
            place = memory.take_slot()
            return _Held(memory.memory[place : place + nbytes], place)
        room = self._free.pop() if self._free else None
        if room is None or room.nbytes < nbytes:
            room = empty_room(nbytes)
        return _Held(room[:nbytes])

    def _use(self, flight: _Flight, tag: int) -> None:
        """Pass the window on, and take it."""
        window, reader, takers = flight.shared
        me, data = self._group.me, flight.held.data if flight.held else None
        if flight.read is not None:
            data = flight.read.result()
            self.moved.nbytes_read += window.nbytes
            self._pass_on(flight, data, tag)
        elif flight.arrival is not None:
            self.awaited = reader
            _wait(flight.arrival, reader)
            self.awaited = None
            self.moved.nbytes_received += window.nbytes
        self._require_going()
        if me in takers and data is not None:
            self._acts.take(window, data)

    def _pass_on(self, flight: _Flight, data: Array, tag: int) -> None:
        others = [rank for rank in flight.shared.takers if rank != self._group.me]
        if flight.held is None and others:
            # Not before its turn: of memory that others see, little is enough then.
            flight.held = self._hold(data.nbytes, others)
            flight.held.data[:] = data
        if flight.held is not None:
            flight.sends = {rank: self._send(flight.held, rank, tag) for rank in others}

    def _finish(self, flight: _Flight) -> None:
        """Wait until it has been passed on; then its memory is free."""
        for to, work in flight.sends.items():
            _wait(work, to)
        self.finished += 1
        self._nbytes_in_flight -= flight.nbytes
        if flight.held is not None:
            self._give_back(flight.held)

    def _give_back(self, held: _Held) -> None:
        memory = self._commons.memory
        if held.place is not None and memory is not None:
            memory.give_back(held.place)
        else:
            self._free.append(held.data)

    def _borrow(self, window: Window, rank: int) -> Work:
        def take(data: Array) -> None:
            self._require_going()
            self._acts.take(window, data)

        return self._commons.borrow(rank, window.nbytes, take, self._require_going)

    def _send(self, held: _Held, rank: int, tag: int) -> Work:
        if held.place is not None and self._commons.sees_mine(rank, held.data.nbytes):
            return self._commons.lend(rank, held.place, self._require_going)
        try:
            return self._line(rank, tag).send(held.wire)
        except RuntimeError as error:
            raise _gone(rank, error) from error

    def _receive(self, memory: torch.Tensor, rank: int, tag: int) -> Work:
        try:
            return self._line(rank, tag).recv(memory)
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

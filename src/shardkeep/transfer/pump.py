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
from shardkeep.plan.reads import Runs
from shardkeep.plan.sharing import SharedRead, Window
from shardkeep.ranks import RankGroup
from shardkeep.ranks.group import Work
from shardkeep.ranks.neighbours import Fetch, Line, Offer, is_worth_reading, neighbours_of
from shardkeep.ranks.process_memory import read_memory, read_scattered
from shardkeep.transfer.read import Array

IN_FLIGHT_NBYTES = 64 * 1024 * 1024
_MAX_READERS = 16
# Windows that were used here and may still be on their way to others.
_MAX_SENT = 3
# What a neighbour holds takes no memory here, but a message.
_MAX_FLIGHTS = 64
_offered_for_ever: list[_Flight] = []


class WindowActs(Protocol):
    """What a rank does with windows of files; threads call it at the same time."""

    def read(self, window: Window, memory: Array) -> None:
        """Fill memory with a window's bytes, checked."""
        ...

    def fetch(self, window: Window) -> Array | None:
        """The same in memory of its own; None if it has to be given some."""
        ...

    def take(self, window: Window, data: Array) -> None:
        """Use a window's bytes; the memory is used again afterwards."""
        ...

    def places_of(self, window: Window) -> Sequence[Runs] | None:
        """Where `take` would copy the bytes; None if it does more than that."""
        ...

    def took(self, window: Window) -> None:
        """They were copied there."""
        ...

    def stands_alone(self, window: Window) -> bool:
        """Whether its bytes can be used before those of windows in front of it."""
        ...

    def read_alone(self, window: Window) -> Array | None:
        """The bytes of a window that stands alone, to be taken; None if that is done."""
        ...


class TakenWhole:
    """What acts have in common that can do no more than read a window, and take it."""

    def fetch(self, window: Window) -> None:
        """It has to be given memory."""

    def places_of(self, window: Window) -> None:
        """It does more than copy."""

    def took(self, window: Window) -> None:
        """Never called."""


class BrokenOffError(Exception):
    """Raised in the thread that moves, when the act it belongs to is over."""


@dataclass(slots=True)
class Moved:
    """What one rank did."""

    nbytes_read: int = 0
    nbytes_received: int = 0


@dataclass(frozen=True, slots=True)
class _Held:
    """A window's bytes, and the room that they are in, if it is ours to use again."""

    data: Array
    room: torch.Tensor | None

    @property
    def wire(self) -> torch.Tensor:
        """The bytes to be sent, or the place for those that come."""
        if self.room is None:
            raise RuntimeError("memory that is not ours is read by neighbours alone")
        return self.room[: self.data.nbytes]


@dataclass(slots=True)
class _Flight:
    """A window under way to this rank, or through it."""

    shared: SharedRead
    nbytes: int
    """What it takes of the memory for windows."""
    read: Future[_Held] | None = None
    arrival: Work | None = None
    held: _Held | None = None
    """None while it is read, and for what is read where a neighbour holds it."""
    sends: dict[int, Work] = field(default_factory=dict[int, Work])
    """By the rank that it goes to."""


class Pump:
    """Moves this rank's windows; `stop` ends it between two of them."""

    def __init__(self, group: RankGroup, acts: WindowActs, *, stop: threading.Event) -> None:
        self._group = group
        self._acts = acts
        self._stop = stop
        self._near = neighbours_of(group)
        self._free: deque[torch.Tensor] = deque()
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
                nbytes = 0 if self._is_held_near(task) else task.window.nbytes
                while self._is_full(nbytes, len(flights)) and (sent or flights):
                    self._go_on(flights, sent, tag)
                self._nbytes_in_flight += nbytes
                flights.append(self._start(task, nbytes, pool, tag))
            while sent or flights:
                self._go_on(flights, sent, tag)
        except BaseException:
            # A neighbour may be about to read it, and must not find anything else there.
            _offered_for_ever.extend((*flights, *sent))
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

    def _is_full(self, more_nbytes: int, count: int) -> bool:
        is_over = self._nbytes_in_flight + more_nbytes > IN_FLIGHT_NBYTES
        return count >= _MAX_FLIGHTS or (is_over and more_nbytes > 0)

    def _is_held_near(self, task: SharedRead) -> bool:
        """Whether it is read where another rank of this host holds it."""
        reader = task.reader
        return reader != self._group.me and bool(self._process_of(reader, task.window))

    def _process_of(self, reader: int, window: Window) -> int:
        return self._near.process_of(reader, window.nbytes)

    def _start(self, task: SharedRead, nbytes: int, pool: ThreadPoolExecutor, tag: int) -> _Flight:
        window, reader, takers = task
        if reader == self._group.me:
            others = [rank for rank in takers if rank != reader]
            is_read_here = all(self._near.reads_mine(rank, window.nbytes) for rank in others)
            return _Flight(task, nbytes, read=pool.submit(self._read, window, is_read_here))
        if not nbytes:
            return _Flight(task, nbytes, arrival=self._fetch(window, reader, tag))
        held = self._hold(window.nbytes)
        return _Flight(task, nbytes, arrival=self._receive(held.wire, reader, tag), held=held)

    def _read(self, window: Window, is_read_here: bool) -> _Held:
        own = self._acts.fetch(window) if is_read_here else None
        if own is not None:
            return _Held(own, None)
        held = self._hold(window.nbytes)
        self._acts.read(window, held.data)
        return held

    def _hold(self, nbytes: int) -> _Held:
        """Memory for so many bytes. Threads call it."""
        try:
            room = self._free.pop()
        except IndexError:
            room = None
        if room is None or room.nbytes < nbytes:
            room = torch.empty(nbytes, dtype=torch.uint8)
        return _Held(room.numpy()[:nbytes], room)

    def _use(self, flight: _Flight, tag: int) -> None:
        """Pass the window on, and take it."""
        window, reader, takers = flight.shared
        me = self._group.me
        if flight.read is not None:
            held = flight.held = flight.read.result()
            self.moved.nbytes_read += window.nbytes
            flight.sends = {to: self._send(held, to, tag) for to in takers if to != me}
        elif flight.arrival is not None:
            self.awaited = reader
            _wait(flight.arrival, reader)
            self.awaited = None
            self.moved.nbytes_received += window.nbytes
        self._require_going()
        if me in takers and flight.held is not None:
            self._acts.take(window, flight.held.data)

    def _finish(self, flight: _Flight) -> None:
        """Wait until it has been passed on; then its memory is free."""
        for to, work in flight.sends.items():
            _wait(work, to)
        self.finished += 1
        self._nbytes_in_flight -= flight.nbytes
        self._give_back(flight.held)

    def _give_back(self, held: _Held | None) -> None:
        if held is not None and held.room is not None:
            self._free.append(held.room)

    def _take_there(self, pid: int, window: Window, address: int) -> bool:
        """Take a window out of a neighbour's memory; False if that can be read no more."""
        self._require_going()
        places = self._acts.places_of(window)
        if places is not None:
            done = all(_read_runs(pid, runs, address - window.start) for runs in places)
            self._acts.took(window)
            return done
        held = self._hold(window.nbytes)
        done = read_memory(pid, address, held.wire.data_ptr(), window.nbytes)
        if done:
            self._acts.take(window, held.data)
        self._give_back(held)
        return done

    def _send(self, held: _Held, rank: int, tag: int) -> Work:
        line = self._line(rank, tag)
        try:
            if self._near.reads_mine(rank, held.data.nbytes):
                return Offer(line, held.data.ctypes.data, held)
            return line.send(held.wire)
        except RuntimeError as error:
            raise _gone(rank, error) from error

    def _receive(self, memory: torch.Tensor, rank: int, tag: int) -> Work:
        try:
            return self._line(rank, tag).recv(memory)
        except RuntimeError as error:
            raise _gone(rank, error) from error

    def _fetch(self, window: Window, rank: int, tag: int) -> Work:
        pid = self._process_of(rank, window)
        try:
            return Fetch(self._line(rank, tag), lambda at: self._take_there(pid, window, at))
        except RuntimeError as error:
            raise _gone(rank, error) from error

    def _line(self, rank: int, tag: int) -> Line:
        if self._group.messenger is None:
            raise RuntimeError("a single process has nobody to send to")
        return Line(self._group.messenger, self._group.index_of(rank), tag)


def _read_runs(pid: int, runs: Runs, shift: int) -> bool:
    """Copy runs of a file whose first byte would lie at the address `shift` of another process."""
    return read_scattered(pid, runs.starts + shift, runs.addresses, runs.stops - runs.starts)


def _wait(work: Work, rank: int) -> None:
    try:
        work.wait()
    except RuntimeError as error:
        raise _gone(rank, error) from error


def _gone(rank: int, error: RuntimeError) -> RankFailedError:
    return RankFailedError({rank: f"no bytes came through ({error})"}, "load (share)")

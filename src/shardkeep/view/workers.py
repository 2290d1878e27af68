"""How do all cores compute at once? As forked processes: threads would wait for each other.

Arithmetic in small blocks takes and gives up the interpreter's lock thousands of times a second, so
that two threads are slower than one. A child has all that its parent had opened, takes one group of
acts after the other, and sends back what they gave.
"""

from __future__ import annotations

import mmap
import os
import selectors
import signal
import struct
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, TypeVar

import msgspec

from shardkeep.transfer.progress import Meter

T = TypeVar("T")
Act = Callable[[Meter], T]
Found = dict[int, bytes]
"""What acts gave, by their number."""

_GROUPS_PER_WORKER = 32
_NUMBER = struct.Struct("q")
_LOOK_SECONDS = 0.1
_READ_NBYTES = 2**20
# They have threads of their own, of which a child has none.
_RUNTIMES = ("torch", "obstore", "fsspec")


def can_fork() -> bool:
    """Whether a child of this process may compute: nothing else is under way in it."""
    return (
        sys.platform == "linux"
        and threading.active_count() == 1
        and not any(name in sys.modules for name in _RUNTIMES)
    )


def run_forked(
    acts: Sequence[Act[T]], kind: type[T], *, workers: int, done: Callable[[int], None]
) -> Mapping[int, T]:
    """What acts gave, by their number; those of a worker that failed are missing.

    `done` is told now and then how many bytes were done since.
    """
    groups = _grouped(len(acts), workers)
    board = mmap.mmap(-1, _NUMBER.size * workers)
    claims = os.memfd_create("claims")
    started: list[_Worker] = []
    at_once = True
    try:
        os.pwrite(claims, b"".join(map(_NUMBER.pack, range(len(groups)))), 0)
        for number in range(workers):
            meter = _BoardMeter(board, number)
            started.append(_start(lambda meter=meter: _work(acts, groups, claims, meter)))
        _await_all(started, board, done)
        at_once = False
    finally:
        os.close(claims)
        for worker in started:
            worker.end(at_once=at_once)
    found: dict[int, T] = {}
    for worker in started:
        for number, data in worker.found().items():
            found[number] = msgspec.msgpack.decode(data, type=kind)
    return found


def _grouped(count: int, workers: int) -> Sequence[range]:
    """Consecutive acts: what follows in a file is read by one worker."""
    size = min(count, workers * _GROUPS_PER_WORKER)
    return [range(count * at // size, count * (at + 1) // size) for at in range(size)]


def _work(acts: Sequence[Act[T]], groups: Sequence[range], claims: int, meter: Meter) -> bytes:
    """Take groups until none is left. All workers read on in one file, so that each has its own."""
    found: Found = {}
    while claim := os.read(claims, _NUMBER.size):
        for number in groups[int(_NUMBER.unpack(claim)[0])]:
            found[number] = msgspec.msgpack.encode(acts[number](meter))
    return msgspec.msgpack.encode(found)


class _BoardMeter(Meter):
    """Adds up bytes where the parent sees them; ends the worker if the parent is gone."""

    def __init__(self, board: mmap.mmap, number: int) -> None:
        super().__init__("", None, show=False)
        self._board, self._at, self._parent = board, number * _NUMBER.size, os.getpid()

    def add(self, nbytes: int) -> None:
        super().add(nbytes)
        _NUMBER.pack_into(self._board, self._at, self._done)
        if os.getppid() != self._parent:
            os._exit(1)


@dataclass(slots=True)
class _Worker:
    """A child, and what has come from it."""

    pid: int
    pipe: int
    received: bytearray = field(default_factory=bytearray)
    failed: bool = False

    def found(self) -> Found:
        return {} if self.failed else msgspec.msgpack.decode(self.received, type=Found)

    def end(self, *, at_once: bool) -> None:
        """Wait for its end, which has come once it has sent everything."""
        os.close(self.pipe)
        if at_once:
            os.kill(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        self.failed = status != 0


def _start(act: Callable[[], bytes]) -> _Worker:
    source, sink = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(source)
        _be_worker(act, sink)
    os.close(sink)
    return _Worker(pid, source)


def _be_worker(act: Callable[[], bytes], sink: int) -> NoReturn:
    try:
        # The parent is told, too, and says what there is to say.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        left = memoryview(act())
        while left:
            left = left[os.write(sink, left) :]
        os._exit(0)
    except BaseException:
        # The parent does it again, and meets the same error or none.
        os._exit(1)


def _await_all(workers: Sequence[_Worker], board: mmap.mmap, done: Callable[[int], None]) -> None:
    """Until all have sent what they found, or died."""
    told = 0
    with selectors.DefaultSelector() as selector:
        for worker in workers:
            selector.register(worker.pipe, selectors.EVENT_READ, worker)
        while selector.get_map():
            for key, _ in selector.select(_LOOK_SECONDS):
                if data := os.read(key.fd, _READ_NBYTES):
                    key.data.received += data
                else:
                    selector.unregister(key.fd)
            so_far = sum(number for (number,) in _NUMBER.iter_unpack(board))
            done(so_far - told)
            told = so_far

"""How do processes of one host pass bytes on without a message, or a copy through the kernel?

Who has bytes for others puts them into memory that these have mapped. A semaphore counts what lies
there, another one what has been taken; both lie in the same memory, one pair for each that maps it.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import secrets
import select
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.uint8]]
SLOT_NBYTES = 8 * 1024 * 1024
_SLOTS = 32
_TRACKS = 256
_TRACK_NBYTES = 4096
_PLACES = 256
"""More than are ever under way between two processes."""
_HEAD_NBYTES = 4096
_DATA_START = _HEAD_NBYTES + _TRACKS * _TRACK_NBYTES
_NBYTES = _DATA_START + _SLOTS * SLOT_NBYTES
_POSTED_AT, _TAKEN_AT, _PLACES_AT = 0, 64, 128
# So often a wait looks whether it is still worth it.
_LOOK_SECONDS = 0.05

_libc = ctypes.CDLL(None, use_errno=True)
# Calls that return at once: other threads need not run meanwhile.
_quick = ctypes.PyDLL(None)


def can_share() -> bool:
    """Whether this system has all that is needed. Containers may be refused what its kernel has."""
    if sys.platform != "linux" or not hasattr(_libc, "sem_clockwait"):
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
        os.close(os.memfd_create("shardkeep", os.MFD_CLOEXEC))
    except OSError:
        return False
    return True


CAN_SHARE = can_share()


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class GoneError(RuntimeError):
    """The process at the other end has ended."""


class Track:
    """What goes from the process that owns a memory to one that has mapped it, in order."""

    def __init__(self, memory: Array, number: int, pid: int) -> None:
        start = _HEAD_NBYTES + number * _TRACK_NBYTES
        self._memory = memory
        address = memory.ctypes.data + start
        self._posted = ctypes.c_void_p(address + _POSTED_AT)
        self._taken = ctypes.c_void_p(address + _TAKEN_AT)
        stop = _PLACES_AT + 8 * _PLACES
        self._places = memory[start + _PLACES_AT : start + stop].view(np.int64)
        self._count = 0
        # Not its number, which another process may have once it has ended.
        self._process = os.pidfd_open(pid)

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):
            os.close(self._process)

    def prepare(self) -> None:
        """Nothing is under way. Done once, by the owner, before the other end looks."""
        for semaphore in (self._posted, self._taken):
            _quick.sem_init(semaphore, 1, 0)

    def post(self, place: int) -> None:
        """Say that bytes lie at a place of the memory."""
        self._places[self._count % _PLACES] = place
        self._count += 1
        _quick.sem_post(self._posted)

    def await_taken(self, look: Callable[[], None]) -> None:
        """Wait until the first of those that were not yet waited for has been taken."""
        self._await(self._taken, look)

    def await_posted(self, look: Callable[[], None]) -> int:
        """The place of the next bytes. `look` is called now and then, and may raise."""
        self._await(self._posted, look)
        place = int(self._places[self._count % _PLACES])
        self._count += 1
        return place

    def say_taken(self) -> None:
        """The bytes that were awaited last are needed no more."""
        _quick.sem_post(self._taken)

    def _await(self, semaphore: ctypes.c_void_p, look: Callable[[], None]) -> None:
        if _quick.sem_trywait(semaphore) == 0:
            return
        while not _wait(semaphore, _LOOK_SECONDS):
            look()
            if self._is_over() and _quick.sem_trywait(semaphore) != 0:
                raise GoneError("its process has ended")

    def _is_over(self) -> bool:
        return bool(select.select([self._process], [], [], 0)[0])


class CommonMemory:
    """Memory of this process that others can map, in slots of `SLOT_NBYTES`."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("shardkeep", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, _NBYTES)
        # Whoever maps it need not fear that it is cut off.
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        self._map = mmap.mmap(self.fd, _NBYTES)
        self.memory: Array = np.frombuffer(self._map, np.uint8)
        self.word = secrets.randbits(62)
        self.memory[:8].view(np.int64)[0] = self.word
        self._tracks = 0
        self._free = list(range(_SLOTS))
        self._is_used = False

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):
            os.close(self.fd)

    def next_track(self) -> int:
        """A number for one more process; -1 if there are too many."""
        self._tracks += 1
        return self._tracks - 1 if self._tracks <= _TRACKS else -1

    @property
    def has_room(self) -> bool:
        return bool(self._free)

    def take_slot(self) -> int:
        """The place of a slot that is free. The one that was in use last is still in the cache."""
        self._is_used = True
        return _DATA_START + self._free.pop() * SLOT_NBYTES

    def give_back(self, place: int) -> None:
        """Its bytes have been taken by all."""
        self._free.append((place - _DATA_START) // SLOT_NBYTES)

    def shrink(self) -> None:
        """Give the pages of all slots, none of which is in use, back to the system."""
        if self._is_used:
            self._map.madvise(mmap.MADV_REMOVE, _DATA_START, _NBYTES - _DATA_START)
        self._is_used = False


def map_memory(pid: int, fd: int, word: int) -> Array | None:
    """Another process's memory, if the word is in it; None if it cannot be had."""
    try:
        mine = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        seals = fcntl.fcntl(mine, fcntl.F_GET_SEALS)
        if not seals & fcntl.F_SEAL_SHRINK or os.fstat(mine).st_size != _NBYTES:
            return None
        memory: Array = np.frombuffer(mmap.mmap(mine, _NBYTES), np.uint8)
    except OSError:
        # A file of another kind, or no memory to map it.
        return None
    finally:
        os.close(mine)
    return memory if int(memory[:8].view(np.int64)[0]) == word else None


def _wait(semaphore: ctypes.c_void_p, seconds: float) -> bool:
    """Whether it could be lowered by one within so many seconds."""
    whole, rest = divmod(time.monotonic_ns() + int(seconds * 1e9), 10**9)
    until = _TimeSpec(whole, rest)
    return _libc.sem_clockwait(semaphore, time.CLOCK_MONOTONIC, ctypes.byref(until)) == 0

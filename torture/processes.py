"""How does a campaign run ranks that it can kill? As children of a process that has torch already.

A fork takes milliseconds, so that a round of a campaign takes a fraction of a second. What a child
raises, and was not expected, comes back as text.
"""

from __future__ import annotations

import os
import signal
import struct
import tempfile
import time
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from typing import Any, NoReturn

import torch
import torch.distributed

import shardkeep as sk
from shardkeep.errors import ShardkeepError

# Much of it is missing in its type information.
c10d: Any = torch.distributed
MEMORY = "/dev/shm"
LOCALHOST = "127.0.0.1"


@cache
def warm() -> None:
    """Have everything imported and set up that a save and a load need: children inherit it."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        sk.save({"a": torch.ones(3)}, folder)
        sk.load(folder)
        sk.prune(folder)


def fork(act: Callable[[], object], log: int) -> int:
    """The process that runs `act` and nothing else; a ShardkeepError is no trouble."""
    pid = os.fork()
    return pid or _finish(act, log)


def _finish(act: Callable[[], object], log: int) -> NoReturn:
    code, log = 1, os.dup(log)
    try:
        # c10d prints the stack of every connection that is lost.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        # Threads of the parent are not there: nothing may wait for them.
        torch.set_num_threads(1)
        act()
        code = 0
    except ShardkeepError:
        code = 0
    except BaseException:
        os.write(log, traceback.format_exc().encode())
    finally:
        os._exit(code)


@contextmanager
def logged() -> Generator[int]:
    """Where children write what troubles them; AssertionError with it if anything is there."""
    log = os.memfd_create("log")
    try:
        yield log
        if said := read_log(log):
            raise AssertionError(f"a process raised what it should not: {said}")
    finally:
        os.close(log)


def read_log(log: int) -> str:
    """What children wrote so far."""
    return os.pread(log, 1 << 20, 0).decode()


def kill(pids: Sequence[int], number: int = signal.SIGKILL) -> None:
    """Send a signal to those who are still there."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def reap(pids: Sequence[int], seconds: float) -> list[int]:
    """Wait for children to end; those that did not in time, and were killed."""
    deadline, left = time.monotonic() + seconds, list(pids)
    while left and time.monotonic() < deadline:
        left = [pid for pid in left if os.waitpid(pid, os.WNOHANG)[0] == 0]
        if left:
            time.sleep(0.001)
    kill(left)
    for pid in left:
        os.waitpid(pid, 0)
    return left


def keep_store(pipe: int, host: str = LOCALHOST) -> None:
    """Serve a Store until the parent is gone; its port goes to the pipe."""
    store = c10d.TCPStore(host, 0, None, True, wait_for_workers=False)
    os.write(pipe, struct.pack("i", store.port))
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.2)


def start_store(prepare: Callable[[], object] = lambda: None) -> tuple[int, int]:
    """The process and the port of a Store; `prepare` runs in the process first."""
    source, target = os.pipe()

    def serve() -> None:
        prepare()
        keep_store(target)

    pid = fork(serve, 2)
    port = struct.unpack("i", os.read(source, 4))[0]
    os.close(source)
    os.close(target)
    return pid, port


@contextmanager
def serving() -> Generator[int]:
    """The port of a Store in a process of its own."""
    pid, port = start_store()
    try:
        yield port
    finally:
        kill([pid])
        os.waitpid(pid, 0)


def connect(port: int, host: str = LOCALHOST) -> Any:
    """A client of the Store."""
    return c10d.TCPStore(host, port, None, False, timedelta(seconds=60))

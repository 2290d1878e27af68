"""How is a library asked something in a process that may crash, hang or be killed?

Everything is imported once; each question is a fork of that process, which has done nothing yet.
"""

from __future__ import annotations

import json
import mmap
import os
import select
import signal
import struct
import time
from collections.abc import Callable
from pathlib import Path

import torch

from torture.peers.libraries import Library, State

_PATIENCE = 60.0


def state_of(version: int, numel: int) -> State:
    """A state that only this version has."""
    big = torch.arange(numel, dtype=torch.float32) + 7 * version
    return {"big": big, "also": big.flip(0).clone(), "small": torch.full((5,), float(version))}


def asked(question: Callable[[], str]) -> str:
    """The answer of a forked process; `crash: ...` or `hang` if there is none."""
    ear, mouth = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ear)
        _silence()
        try:
            answer = question()
        except BaseException as error:
            answer = f"error: {type(error).__name__}: {str(error)[:200]}"
        os.write(mouth, answer.encode())
        os._exit(0)
    os.close(mouth)
    try:
        if not select.select([ear], [], [], _PATIENCE)[0]:
            os.kill(child, signal.SIGKILL)
            return "hang"
        answer = os.read(ear, 2**16).decode(errors="replace")
    finally:
        os.close(ear)
        _, status = os.waitpid(child, 0)
    return answer or f"crash: status {status}"


def _silence() -> None:
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)


def version_at(library: Library, path: Path, numel: int) -> str:
    """`whole N`, `mixed` for values that no save wrote, or why it cannot be loaded."""

    def question() -> str:
        like = {key: torch.zeros_like(value) for key, value in state_of(0, numel).items()}
        found = library.load(path, like)
        version = int(found["small"][0])
        wanted = state_of(version, numel)
        same = all(torch.equal(found[key], wanted[key]) for key in wanted)
        return f"whole {version}" if same else "mixed"

    return asked(question)


class Saver:
    """A process that saves version after version until it is killed."""

    def __init__(self, library: Library, path: Path, numel: int, first: int) -> None:
        self._board = mmap.mmap(-1, 16)
        self._board[:] = struct.pack("qq", first, 0)
        self.pid = os.fork()
        if self.pid == 0:
            _silence()
            version = first
            try:
                while True:
                    version += 1
                    state = state_of(version, numel)
                    self._board[8:] = struct.pack("q", version)
                    library.save(state, path)
                    self._board[:8] = struct.pack("q", version)
            finally:
                os._exit(1)

    @property
    def acked(self) -> int:
        """The last version whose save returned."""
        return struct.unpack("qq", self._board)[0]

    @property
    def begun(self) -> int:
        return struct.unpack("qq", self._board)[1]

    def wait(self, version: int) -> None:
        """Until this version is being saved."""
        deadline = time.monotonic() + _PATIENCE
        while self.begun < version and time.monotonic() < deadline:
            time.sleep(0.0005)

    def kill(self) -> None:
        """SIGKILL, now."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def as_json(answer: object) -> str:
    """For answers of more than a word."""
    return json.dumps(answer)

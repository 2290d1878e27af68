"""How does a test run a function on real ranks without paying for process start each time?

A pool starts its ranks once, by torchrun, and keeps them. Calls and answers are lines of JSON
over one loopback socket for each rank. The socket is the lifeline, too: a worker that sees its
end exits, so that no worker outlives the tests.
"""

import contextlib
import json
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NoReturn

ROOT = Path(__file__).parents[2]
START_SECONDS = 120.0
CALL_SECONDS = 60.0
# What the other ranks get to report when one has failed; they may be waiting for it.
GRACE_SECONDS = 5.0


class RanksFailed(AssertionError):  # noqa: N818
    """Some rank failed, died or did not answer; the message has what each of them said."""


class Deadline:
    """When to stop waiting."""

    def __init__(self, seconds: float) -> None:
        self._at = time.monotonic() + seconds

    @property
    def seconds_left(self) -> float:
        return self._at - time.monotonic()

    def bring_forward(self, seconds: float) -> None:
        """Wait this long at most from now on."""
        self._at = min(self._at, time.monotonic() + seconds)


@dataclass
class Line:
    """The connection to one rank."""

    rank: int
    pid: int
    socket: socket.socket
    pending: bytes = b""

    def send(self, message: object) -> None:
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[dict[str, Any]] | None:
        """The messages that have come; None if the worker is gone."""
        try:
            data = self.socket.recv(1 << 16)
        except ConnectionError:
            data = b""
        if not data:
            return None
        *lines, self.pending = (self.pending + data).split(b"\n")
        return [json.loads(line) for line in lines]


@dataclass
class Pool:
    """`size` gloo ranks that run one function at a time; started by the first call."""

    size: int
    call_seconds: float = CALL_SECONDS
    lines: list[Line] = field(default_factory=list[Line])
    agent: subprocess.Popen[bytes] | None = None
    log: IO[bytes] | None = None

    def run(self, function: Callable[..., Any], **arguments: Any) -> list[Any]:
        """What `function(rank, world, **arguments)` returned on each rank, by rank.

        Arguments and results are JSON. Any failure ends the pool, since messages may be under
        way in its group; the next call starts a fresh one.
        """
        __tracebackhide__ = True  # what the ranks say is what matters
        if self.agent is None:
            self._start()
        call = {"module": function.__module__, "name": function.__name__, "arguments": arguments}
        try:
            return self._call(call)
        except BaseException:
            self.close()
            raise

    def _call(self, call: dict[str, Any]) -> list[Any]:
        __tracebackhide__ = True
        for line in self.lines:
            line.send(call)
        answers = self._collect("answer")
        if len(answers) < self.size or any("error" in answer for answer in answers.values()):
            self._fail(call, answers)
        return [answers[rank]["result"] for rank in range(self.size)]

    def _collect(self, kind: str) -> dict[int, dict[str, Any]]:
        """Answers by rank; some are missing when time is up or a rank failed."""
        answers: dict[int, dict[str, Any]] = {}
        deadline = Deadline(self.call_seconds)
        for line, message in _messages(self.lines, deadline):
            if message is None:
                answers[line.rank] = {"error": "the process is gone\n" + self._log_tail()}
            elif message["kind"] == kind:
                answers[line.rank] = message
            if "error" in answers.get(line.rank, ()):
                deadline.bring_forward(GRACE_SECONDS)
            if len(answers) == self.size:
                break
        return answers

    def _fail(self, call: dict[str, Any], answers: dict[int, dict[str, Any]]) -> NoReturn:
        __tracebackhide__ = True
        late = [line for line in self.lines if line.rank not in answers]
        stacks = self._ask_where(late)
        texts: list[str] = []
        for rank in range(self.size):
            if rank in answers:
                text = answers[rank].get("error", "ok")
            else:
                text = "no answer; it is at\n" + stacks.get(rank, "(nor did it say where it is)")
            texts.append(f"--- rank {rank}: {text}")
        raise RanksFailed(f"{call['module']}.{call['name']} failed\n" + "\n".join(texts))

    def _ask_where(self, late: list[Line]) -> dict[int, str]:
        for line in late:
            line.send({"where": True})
        found: dict[int, str] = {}
        for line, message in _messages(late, Deadline(GRACE_SECONDS)):
            if message and message["kind"] == "where":
                found[line.rank] = message["stack"]
            if len(found) == len(late):
                break
        return found

    def _start(self) -> None:
        self.log = tempfile.TemporaryFile()  # noqa: SIM115  closed with the pool
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(START_SECONDS)
            token = secrets.token_hex(16)
            environment = os.environ | {
                "OMP_NUM_THREADS": "1",
                "SHARDKEEP_POOL": f"{server.getsockname()[1]}:{token}",
            }
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
            command += ["--nproc-per-node", str(self.size), "-m", "tests.distributed.worker"]
            # A session of its own: Ctrl-C in the terminal is for pytest, which closes the pool.
            self.agent = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdout=self.log,
                stderr=self.log,
                start_new_session=True,
            )
            try:
                self.lines = self._greet(server, token)
            except BaseException as error:
                tail = self._log_tail()
                self.close()
                raise RanksFailed(f"a pool of {self.size} did not start\n{tail}") from error

    def _greet(self, server: socket.socket, token: str) -> list[Line]:
        found: dict[int, Line] = {}
        while len(found) < self.size:
            connection, _ = server.accept()
            connection.settimeout(START_SECONDS)
            with connection.makefile("rb") as stream:
                hello = json.loads(stream.readline())
            if hello["token"] != token:
                connection.close()
                continue
            connection.setblocking(True)
            found[hello["rank"]] = Line(hello["rank"], hello["pid"], connection)
        return [found[rank] for rank in sorted(found)]

    def _log_tail(self) -> str:
        if self.log is None:
            return ""
        self.log.seek(0)
        return self.log.read()[-4000:].decode(errors="replace")

    def close(self) -> None:
        """End all processes of this pool; a later call starts new ones."""
        for line in self.lines:
            line.socket.close()
            _kill(line.pid)
        if self.agent is not None:
            self.agent.terminate()
            try:
                self.agent.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                self.agent.kill()
                self.agent.wait()
        if self.log is not None:
            self.log.close()
        self.lines, self.agent, self.log = [], None, None


def _messages(
    lines: list[Line], deadline: Deadline
) -> Iterator[tuple[Line, dict[str, Any] | None]]:
    """Messages as they come, and None for a worker that went away, until the deadline."""
    with selectors.DefaultSelector() as selector:
        for line in lines:
            selector.register(line.socket, selectors.EVENT_READ, line)
        while deadline.seconds_left > 0 and selector.get_map():
            for key, _ in selector.select(deadline.seconds_left):
                messages = key.data.receive()
                if messages is None:
                    selector.unregister(key.fileobj)
                    yield key.data, None
                for message in messages or ():
                    yield key.data, message


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)

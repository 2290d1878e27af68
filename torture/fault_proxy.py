"""What can go wrong between a client and an object store? A proxy that does it, on purpose.

It passes HTTP/1.1 requests on as they are, so that signatures stay valid, and keeps a log of them.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

Fault = Literal["500", "503", "slow", "reset", "lost", "cut"]
"""`lost`: carried out, and never answered. `cut`: the answer breaks off."""

FAULTS: tuple[Fault, ...] = ("500", "503", "slow", "reset", "lost", "cut")
_ERRORS = {"500": ("Internal Server Error", "InternalError"), "503": ("Slow Down", "SlowDown")}
_PIECE = 64 * 1024


class Asked(NamedTuple):
    """A request as the proxy saw it."""

    method: str
    target: str
    fault: Fault | None


@dataclass
class FaultProxy:
    """Passes requests to `upstream`; `choose` says what happens to each."""

    upstream: str
    choose: Callable[[str, str], Fault | None] = lambda _method, _target: None
    slow_seconds: float = 0.3
    latency_seconds: float = 0.0
    """Before every answer, as of a store that is far away."""
    log: list[Asked] = field(default_factory=list[Asked])
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def serving(self) -> Generator[str]:
        """The proxy's own endpoint."""
        listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            # close() alone would leave the thread in accept().
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(client,), daemon=True).start()

    def _talk(self, client: socket.socket) -> None:
        place = urlsplit(self.upstream)
        with client, suppress(OSError):
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            server = socket.create_connection((place.hostname or "", place.port or 80))
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with server:
                asking, answering = _Stream(client), _Stream(server)
                while self._pass_one(asking, answering):
                    pass

    def _pass_one(self, asking: _Stream, answering: _Stream) -> bool:
        """One request and its answer; False if the connection is over."""
        head = asking.head()
        if head is None:
            return False
        method, target, _ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
        with self._lock:
            fault = self.choose(method, target)
            self.log.append(Asked(method, target, fault))
        if self.latency_seconds:
            time.sleep(self.latency_seconds)
        if fault == "reset":
            asking.reset()
            return False
        if fault in ("500", "503"):
            asking.body(head, method, None)
            asking.send(_refusal(fault, method))
            return True
        if fault == "slow":
            time.sleep(self.slow_seconds)
        answering.send(head)
        asking.body(head, method, answering)
        answer = answering.head()
        if answer is None:
            return False
        if fault == "lost":
            answering.body(answer, method, None, is_answer=True)
            asking.reset()
            return False
        asking.send(answer)
        if fault == "cut":
            answering.body(answer, method, asking, is_answer=True, limit=1000)
            asking.reset()
            return False
        answering.body(answer, method, asking, is_answer=True)
        return b"connection: close" not in answer.lower()


def _refusal(fault: str, method: str) -> bytes:
    reason, code = _ERRORS[fault]
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>on purpose</Message></Error>"
    sent = "" if method == "HEAD" else body
    return (
        f"HTTP/1.1 {fault} {reason}\r\nContent-Type: application/xml\r\n"
        f"Content-Length: {len(sent)}\r\n\r\n{sent}"
    ).encode()


class _Stream:
    """One side of a connection."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._rest = b""

    def head(self) -> bytes | None:
        """Everything up to the empty line; None at the end."""
        while (end := self._rest.find(b"\r\n\r\n")) < 0:
            piece = self._sock.recv(_PIECE)
            if not piece:
                return None
            self._rest += piece
        head, self._rest = self._rest[: end + 4], self._rest[end + 4 :]
        return head

    def send(self, data: bytes) -> None:
        self._sock.sendall(data)

    def reset(self) -> None:
        """Break the connection off, so that the other side sees an error."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._sock.close()

    def body(
        self,
        head: bytes,
        method: str,
        to: _Stream | None,
        *,
        is_answer: bool = False,
        limit: int | None = None,
    ) -> None:
        """Pass the body on that belongs to a head, or drop it; at most `limit` bytes of it."""
        fields = _fields(head)
        status = head.split(b" ", 2)[1]
        if is_answer and (method == "HEAD" or status in (b"204", b"304")):
            return
        if fields.get(b"transfer-encoding", b"") == b"chunked":
            self._chunks(to)
            return
        left = int(fields.get(b"content-length", b"0"))
        if limit is not None:
            left = min(left // 2, limit)
        self._pass(left, to)

    def _chunks(self, to: _Stream | None) -> None:
        while True:
            line = self._line()
            if to is not None:
                to.send(line)
            nbytes = int(line.split(b";")[0], 16)
            self._pass(nbytes + 2, to)
            if nbytes == 0:
                return

    def _line(self) -> bytes:
        while (end := self._rest.find(b"\r\n")) < 0:
            piece = self._sock.recv(_PIECE)
            if not piece:
                raise OSError("ended in the middle")
            self._rest += piece
        line, self._rest = self._rest[: end + 2], self._rest[end + 2 :]
        return line

    def _pass(self, nbytes: int, to: _Stream | None) -> None:
        while nbytes:
            if not self._rest:
                self._rest = self._sock.recv(min(_PIECE, nbytes))
                if not self._rest:
                    raise OSError("ended in the middle")
            piece, self._rest = self._rest[:nbytes], self._rest[nbytes:]
            nbytes -= len(piece)
            if to is not None:
                to.send(piece)


def _fields(head: bytes) -> dict[bytes, bytes]:
    lines = head.split(b"\r\n")[1:]
    pairs = [line.split(b":", 1) for line in lines if b":" in line]
    return {name.strip().lower(): value.strip().lower() for name, value in pairs}

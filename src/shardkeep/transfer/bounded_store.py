"""How long may a question to the Store take? Not longer than the wait that it belongs to.

The client of c10d's TCPStore waits for its server in C++, and most of its calls wait without an
end: a server that is stopped, or cut off by the network, would hold a rank for ever. So a thread of
its own asks, and whoever wants to know waits for it only as long as there is time. A thread that
gets no answer is left behind; nothing more is asked through it.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol, cast


class NoteStore(Protocol):
    """What is used of a c10d Store."""

    def set(self, key: str, value: str | bytes, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def add(self, key: str, amount: int, /) -> int: ...
    def check(self, keys: list[str], /) -> bool: ...
    def multi_get(self, keys: list[str], /) -> list[bytes]: ...
    def delete_key(self, key: str, /) -> bool: ...
    def has_extended_api(self) -> bool: ...


class SilentStoreError(RuntimeError):
    """Raised when a Store gave no answer in time; as c10d's own errors, a RuntimeError."""


Question = tuple[str, tuple[Any, ...]]
_Questions = queue.SimpleQueue[Question | None]
_Answers = queue.SimpleQueue[tuple[bool, Any]]


def bounded(store: NoteStore, seconds_left: Callable[[], float]) -> NoteStore:
    """The Store, with an end to every question if another process has to answer it."""
    import torch.distributed

    # Much of it is missing in its type information.
    c10d, inner = cast("Any", torch.distributed), cast("Any", store)
    while isinstance(inner, c10d.PrefixStore):
        inner = inner.underlying_store
    if not isinstance(inner, c10d.TCPStore):
        return store
    where = f"{inner.host}:{inner.port}"
    return BoundedStore(store, where, seconds_left)


def let_go(store: NoteStore) -> None:
    """End the thread that asks, if there is one; the next question starts another."""
    if isinstance(store, BoundedStore):
        store.close()


class BoundedStore:
    """Asks a Store and waits `seconds_left()` for the answer; SilentStoreError if none comes.

    Threads may share it.
    """

    def __init__(self, store: NoteStore, where: str, seconds_left: Callable[[], float]) -> None:
        self._store = store
        self._where = where
        self._seconds_left = seconds_left
        self._turn = threading.Lock()
        self._questions: _Questions = queue.SimpleQueue()
        self._answers: _Answers = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_silent = False
        # Also for those who forget to close.
        weakref.finalize(self, self._questions.put, None).atexit = False

    def set(self, key: str, value: str | bytes, /) -> None:
        self._ask("set", key, value)

    def get(self, key: str, /) -> bytes:
        return self._ask("get", key)

    def add(self, key: str, amount: int, /) -> int:
        return self._ask("add", key, amount)

    def check(self, keys: list[str], /) -> bool:
        return self._ask("check", keys)

    def multi_get(self, keys: list[str], /) -> list[bytes]:
        return self._ask("multi_get", keys)

    def delete_key(self, key: str, /) -> bool:
        return self._ask("delete_key", key)

    def has_extended_api(self) -> bool:
        return self._store.has_extended_api()

    def close(self) -> None:
        """End the thread, at once or when it has its answer."""
        if self._thread is not None:
            self._questions.put(None)
            self._thread = None

    def _ask(self, verb: str, *args: Any) -> Any:
        seconds = self._seconds_left()
        if self._is_silent or not self._turn.acquire(timeout=seconds):
            raise self._silent(seconds)
        try:
            self._start()
            self._questions.put((verb, args))
            is_well, answer = self._answers.get(timeout=seconds)
        except queue.Empty:
            self._is_silent = True
            raise self._silent(seconds) from None
        finally:
            self._turn.release()
        if is_well:
            return answer
        raise answer

    def _silent(self, seconds: float) -> SilentStoreError:
        return SilentStoreError(f"{self._where} said nothing for {seconds:.3g} s")

    def _start(self) -> None:
        if self._thread is not None:
            return
        # A daemon: one that waits for an answer must not keep the process from ending.
        self._thread = threading.Thread(
            target=_answer,
            args=(self._store, self._questions, self._answers),
            name="shardkeep-store",
            daemon=True,
        )
        self._thread.start()


def _answer(store: NoteStore, questions: _Questions, answers: _Answers) -> None:
    while (question := questions.get()) is not None:
        verb, args = question
        try:
            answers.put((True, getattr(store, verb)(*args)))
        except BaseException as error:
            answers.put((False, error))

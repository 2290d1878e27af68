"""How does a save go on while training does, and how does its failure come to light?"""

from __future__ import annotations

import atexit

# Imported before the registration below, so that it closes its thread pools after our saves.
import concurrent.futures.thread as _thread_pools  # noqa: F401  # pyright: ignore[reportUnusedImport]
import os
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")
# More, and a save that finds all cores busy may take ten times as long as alone; less, and training
# feels it.
_NICENESS = 3


class Handle(Generic[T]):
    """A save that goes on in the background.

    `staged()` waits until the state may be changed again, `result()` until it is committed.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self._staged = threading.Event()
        self._future: Future[T] = Future()
        self._seen = False

    def staged(self, timeout: float | None = None) -> None:
        """Return when the state was copied; raises if that failed."""
        if not self._staged.wait(timeout):
            raise TimeoutError(f"{self.what}: not staged within {timeout:g} s")
        if self._future.done() and self._future.exception() is not None:
            self.result()

    def result(self, timeout: float | None = None) -> T:
        """What the save did, once it is committed; its error if it failed."""
        self._seen = True
        return self._future.result(timeout)

    def done(self) -> bool:
        """Whether the save is over, committed or failed."""
        return self._future.done()

    def wait(self) -> None:
        """Return when the save is over."""
        wait([self._future])

    def has_failed(self) -> bool:
        """Whether the save is over, and nothing was committed."""
        return self._future.done() and self._future.exception() is not None

    def unseen_error(self) -> BaseException | None:
        """The error of a failed save that nobody has asked for yet."""
        if self._seen or not self._future.done():
            return None
        self._seen = True
        return self._future.exception()

    def mark_staged(self) -> None:
        """The state may be changed again."""
        self._staged.set()

    def finish(self, act: Callable[[], T]) -> None:
        """Run the save and keep its outcome."""
        try:
            self._future.set_result(act())
        except BaseException as error:
            self._future.set_exception(error)
        finally:
            self._staged.set()


class Background:
    """One thread that carries out saves in order, at most `limit` waiting or running."""

    def __init__(self, limit: int) -> None:
        self._room = threading.BoundedSemaphore(limit)
        self._lock = threading.Lock()
        self._last: threading.Thread | None = None
        self._open: list[Handle[object]] = []
        _all.add(self)

    def reserve(self) -> None:
        """Wait for room: memory for snapshots is bounded, so a fast caller is slowed down."""
        self._room.acquire()

    def give_back(self) -> None:
        """The room of a save that was never submitted."""
        self._room.release()

    def raise_unseen(self) -> None:
        """Raise the error of an earlier save that nobody has seen."""
        with self._lock:
            while self._open and self._open[0].done():
                # Saves end in order. One error is raised at a time, those behind it stay.
                error = self._open.pop(0).unseen_error()
                if error is not None:
                    raise error

    def submit(self, handle: Handle[T], act: Callable[[], T]) -> None:
        """Run `act` after everything that was submitted before; its room is free afterwards."""
        with self._lock:
            before = self._last
            # Not a daemon: the interpreter waits at exit, so that what was begun is committed.
            thread = threading.Thread(
                target=self._run, args=(before, handle, act), name="shardkeep-save", daemon=False
            )
            self._last = thread
            self._open.append(handle)  # type: ignore[arg-type]
            thread.start()

    def _run(
        self, before: threading.Thread | None, handle: Handle[T], act: Callable[[], T]
    ) -> None:
        if before is not None:
            before.join()
        stand_back()
        try:
            handle.finish(act)
        finally:
            self._room.release()

    def wait(self) -> None:
        """Return when nothing is under way any more."""
        last = self._last
        if last is not None:
            last.join()

    def unseen_errors(self) -> list[tuple[str, BaseException]]:
        """What failed and nobody asked for, as the interpreter exits."""
        found: list[tuple[str, BaseException]] = []
        for handle in self._open:
            error = handle.unseen_error()
            if error is not None:
                found.append((handle.what, error))
        return found


def stand_back() -> None:
    """Let training go first where both want a core; threads that this one starts do the same."""
    if sys.platform == "linux":
        # There, what the call names a process is a thread.
        me = threading.get_native_id()
        niceness = max(_NICENESS, os.getpriority(os.PRIO_PROCESS, me))
        os.setpriority(os.PRIO_PROCESS, me, niceness)


_all: weakref.WeakSet[Background] = weakref.WeakSet()


def _finish_saves() -> None:
    for background in list(_all):
        background.wait()


# Thread pools take no work any more when the interpreter begins to exit, earlier than atexit and
# than the end of threads; a save that is under way still needs them. Last registered, first called.
_before_pools_close: Any = getattr(cast("Any", threading), "_register_atexit", atexit.register)
_before_pools_close(_finish_saves)


@atexit.register
def _say_what_was_lost() -> None:
    for background in list(_all):
        background.wait()
        for what, error in background.unseen_errors():
            print(f"shardkeep: {what} was NOT saved: {error}", file=sys.stderr)

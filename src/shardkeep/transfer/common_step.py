"""At which step do all ranks act together, when one of them is asked to at any moment?

A signal or a timer reaches ranks at different places of their loops. Whoever is asked leaves a note
in the Store; a thread on each rank sees it and says which decision its loop comes to next, and from
then on that loop waits. The chair names the latest of these, everyone goes on to it, and there all
act. Nobody is ever ahead of it, since nobody passes a decision between saying and hearing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from shardkeep.errors import DeadlineError, name_ranks
from shardkeep.transfer.council import NoteStore

_POLL_SECONDS = 0.1
# The Store answers some ten thousand questions a second: a large job asks less often.
_POLL_SECONDS_PER_RANK = 0.0002


class CommonStep(Protocol):
    """A decision that a loop comes to again and again, equally often on all ranks."""

    def ask(self, reason: str) -> None:
        """Have all ranks act soon. From any thread or signal handler's wake; does not wait."""
        ...

    def decide(self) -> str | None:
        """Whether to act now, and why: the same answer on all ranks."""
        ...

    def close(self) -> None:
        """No decision comes any more."""
        ...


class SoloStep:
    """A single process acts at its next decision."""

    def __init__(self) -> None:
        self._reasons: list[str] = []

    def ask(self, reason: str) -> None:
        if reason not in self._reasons:
            self._reasons.append(reason)

    def decide(self) -> str | None:
        return self._reasons.pop(0) if self._reasons else None

    def close(self) -> None:
        self._reasons.clear()


class StoreStep:
    """Ranks that share a Store. `topic` is the same on all, and nobody else's.

    `look` is called now and then by the thread: what it returns is asked for.
    """

    def __init__(
        self,
        store: NoteStore,
        ranks: Sequence[int],
        me: int,
        *,
        topic: str,
        timeout: float,
        look: Callable[[], str | None],
    ) -> None:
        self._store = store
        self._ranks = tuple(ranks)
        self._me = me
        self._chair = min(self._ranks)
        self._topic = topic
        self._timeout = timeout
        self._look = look
        self._turn = threading.Condition()
        self._round = 0
        self._made = 0
        """Decisions of this rank's loop so far."""
        self._holds = False
        self._act_at: int | None = None
        self._reason = ""
        self._failure: Exception | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._watch, name="shardkeep-watch", daemon=True)
        self._thread.start()

    def ask(self, reason: str) -> None:
        if self._store.add(self._key("askers"), 1) == 1:
            self._store.set(self._key("asked"), reason)

    def decide(self) -> str | None:
        with self._turn:
            if not self._turn.wait_for(lambda: not self._holds, self._timeout):
                raise DeadlineError(
                    f"no common step for {self._reason} within {self._timeout:g} s; a rank may be "
                    "dead, or out of its loop"
                )
            if self._failure is not None:
                raise self._failure
            number, self._made = self._made, self._made + 1
            if number != self._act_at:
                return None
            over = self._keys()
            self._act_at = None
            self._round += 1
        if self._store.add(over[0], 1) == len(self._ranks):
            for key in over:
                self._store.delete_key(key)
        return self._reason

    def close(self) -> None:
        """Whoever still loops is not kept waiting for this rank."""
        if self._closed:
            return
        self._closed = True
        self._thread.join()
        if self._act_at is not None or self._failure is not None:
            return
        # A Store that is gone has nobody waiting for it.
        with suppress(RuntimeError):
            if self._me == self._chair:
                self._store.set(self._key("act"), str(self._made))
            else:
                self._report(self._made)

    def _watch(self) -> None:
        pause = _POLL_SECONDS + _POLL_SECONDS_PER_RANK * len(self._ranks)
        while not self._closed:
            try:
                self._look_once()
            except Exception as error:
                with self._turn:
                    self._failure, self._holds = error, False
                    self._turn.notify_all()
                return
            time.sleep(pause)

    def _look_once(self) -> None:
        if self._act_at is not None:
            return
        reason = self._look()
        if reason is not None:
            self.ask(reason)
        if self._store.check([self._key("asked")]):
            self._agree()

    def _agree(self) -> None:
        reason = self._store.get(self._key("asked")).decode()
        with self._turn:
            self._reason, self._holds = reason, True
            made = self._made
        self._report(made)
        if self._me == self._chair:
            self._store.set(self._key("act"), str(max(self._collect())))
        act_at = int(self._heard(self._key("act")))
        with self._turn:
            self._act_at, self._holds = act_at, False
            self._turn.notify_all()

    def _report(self, made: int) -> None:
        self._store.set(self._key(f"at/{self._me}"), str(made))
        self._store.add(self._key("count"), 1)

    def _collect(self) -> list[int]:
        deadline = time.monotonic() + self._timeout
        while self._store.add(self._key("count"), 0) < len(self._ranks):
            if time.monotonic() > deadline:
                late = [r for r in self._ranks if not self._store.check([self._key(f"at/{r}")])]
                raise DeadlineError(
                    f"{name_ranks(late)} did not say where they are within {self._timeout:g} s, so "
                    f"there is no common step for {self._reason}"
                )
            time.sleep(0.005)
        return [int(self._store.get(self._key(f"at/{rank}"))) for rank in self._ranks]

    def _heard(self, key: str) -> bytes:
        deadline = time.monotonic() + self._timeout
        while not self._store.check([key]):
            if time.monotonic() > deadline:
                raise DeadlineError(
                    f"rank {self._chair} named no common step for {self._reason} within "
                    f"{self._timeout:g} s"
                )
            time.sleep(0.005)
        return self._store.get(key)

    def _keys(self) -> list[str]:
        """All of this round."""
        names = ["left", "askers", "asked", "act", "count"]
        return [self._key(name) for name in [*names, *(f"at/{rank}" for rank in self._ranks)]]

    def _key(self, name: str) -> str:
        return f"{self._topic}/{self._round}/{name}"

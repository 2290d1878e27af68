"""At which step do all ranks act together, when one of them is asked to at any moment?

A signal or a timer reaches ranks at different places of their loops. Whoever is asked leaves a note
in the Store; a thread on each rank sees it and says which decision its loop comes to next, and from
then on that loop waits. The chair names the latest of these, everyone goes on to it, and there all
act. Nobody is ever ahead of it, since nobody passes a decision between saying and hearing.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

import msgspec

from shardkeep.errors import DeadlineError, RankFailedError, name_ranks
from shardkeep.transfer.bounded_store import NoteStore, bounded, let_go

_POLL_SECONDS = 0.1
_WAIT_SECONDS = 0.005
# The Store answers some ten thousand questions a second: a large job asks less often.
_SECONDS_PER_RANK = 0.0002
# A chair that is there gets this much longer: when its own wait ends, it says who is late.
_GRACE = 0.5
_MAX_GRACE_SECONDS = 1.0
# A Store that says nothing for so long is gone: the thread must be able to end.
_MAX_SILENCE_SECONDS = 30.0
# The decision of a loop that is over. Where one is, all are soon, and nobody acts any more.
_NEVER = 2**62


class CommonStep(Protocol):
    """A decision that a loop comes to again and again, equally often on all ranks."""

    def ask(self, reason: str) -> None:
        """Have all ranks act soon. From any thread; does not wait."""
        ...

    def decide(self) -> Sequence[str]:
        """Why to act now, the same on all ranks; empty if there is no reason."""
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

    def decide(self) -> Sequence[str]:
        reasons, self._reasons = self._reasons, []
        return reasons

    def close(self) -> None:
        self._reasons.clear()


class _OverError(Exception):
    """This rank's loop is over: no agreement concerns it any more."""


class _Said(msgspec.Struct):
    """What a rank tells the chair."""

    next: int
    """The decision that its loop comes to next."""
    reasons: list[str]


class _Agreed(msgspec.Struct):
    """What the chair tells all."""

    act_at: int
    reasons: list[str]
    late: list[int] = []
    """Ranks that did not say where they are."""


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
        self._store = bounded(store, lambda: min(timeout, _MAX_SILENCE_SECONDS))
        self._ranks = tuple(ranks)
        self._me = me
        self._chair = min(self._ranks)
        self._topic = topic
        self._timeout = timeout
        self._look = look
        self._turn = threading.Condition()
        self._asked: list[str] = []
        """On this rank, and not yet agreed on."""
        self._round = 0
        self._made = 0
        """Decisions of this rank's loop so far."""
        self._reported: int | None = None
        """The last round in which this rank said where it is."""
        self._holds = False
        self._agreed: _Agreed | None = None
        """Of this round. Without it, none but the thread changes the round's state."""
        self._failure: Exception | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="shardkeep-watch", daemon=True)
        self._thread.start()
        # A thread that is inside the Store as the interpreter ends would bring the process down.
        atexit.register(self.close)

    def ask(self, reason: str) -> None:
        with self._turn:
            if reason not in self._asked:
                self._asked.append(reason)

    def decide(self) -> Sequence[str]:
        with self._turn:
            # The thread's own waits have an end, and so has this one.
            self._turn.wait_for(lambda: not self._holds)
            if self._failure is not None:
                raise self._failure
            number, self._made = self._made, self._made + 1
            agreed, over = self._agreed, self._round
            if agreed is None or agreed.act_at != number:
                return ()
            self._agreed, self._round = None, over + 1
        self._leave(over)
        return agreed.reasons

    def close(self) -> None:
        """Whoever still loops is not kept waiting for this rank."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._thread.join()
        atexit.unregister(self.close)
        if self._agreed is None and self._failure is None:
            # A Store that is gone has nobody waiting for it.
            with suppress(RuntimeError):
                self._say_over()
        self._leave(self._round)
        let_go(self._store)

    def _say_over(self) -> None:
        if self._me == self._chair:
            self._set("agreed", _Agreed(_NEVER, []))
        else:
            self._report(_Said(_NEVER, []))

    def _watch(self) -> None:
        while not self._closing.wait(self._pause(_POLL_SECONDS)):
            try:
                self._look_once()
            except _OverError:
                return
            except Exception as error:
                if isinstance(error, RuntimeError) and not (self._asked or self._holds):
                    # The Store is gone. A job that is about to end does not miss it.
                    continue
                self._fail(error)
                return

    def _fail(self, error: Exception) -> None:
        if isinstance(error, RuntimeError):
            said = f"the c10d Store does not answer; its process may be dead ({error})"
            error = RankFailedError({self._me: said}, "common step")
        with self._turn:
            self._failure, self._holds = error, False
            self._turn.notify_all()

    def _look_once(self) -> None:
        with self._turn:
            if self._agreed is not None:
                return
        reason = self._look()
        if reason is not None:
            self.ask(reason)
        if self._asked:
            self._store.set(self._key("asked"), "yes")
        if self._store.check([self._key("asked")]):
            self._agree()

    def _agree(self) -> None:
        with self._turn:
            self._holds = True
            said = _Said(self._made, list(self._asked))
        self._report(said)
        if self._me == self._chair:
            self._set("agreed", self._collect())
        agreed = self._hear()
        with self._turn:
            self._asked = [reason for reason in self._asked if reason not in agreed.reasons]
            self._agreed, self._holds = agreed, False
            self._turn.notify_all()

    def _report(self, said: _Said) -> None:
        self._set(f"said/{self._me}", said)
        if self._reported != self._round:
            self._store.add(self._key("count"), 1)
        self._reported = self._round

    def _collect(self) -> _Agreed:
        deadline = time.monotonic() + self._timeout
        while self._store.add(self._key("count"), 0) < len(self._ranks):
            if time.monotonic() > deadline:
                late = [r for r in self._ranks if not self._store.check([self._key(f"said/{r}")])]
                return _Agreed(_NEVER, [], late)
            self._rest()
        notes = [self._store.get(self._key(f"said/{rank}")) for rank in self._ranks]
        said = [msgspec.json.decode(note, type=_Said) for note in notes]
        reasons = dict.fromkeys(reason for one in said for reason in one.reasons)
        return _Agreed(max(one.next for one in said), list(reasons))

    def _hear(self) -> _Agreed:
        grace = min(_GRACE * self._timeout, _MAX_GRACE_SECONDS)
        deadline = time.monotonic() + self._timeout + grace
        while not self._store.check([self._key("agreed")]):
            if time.monotonic() > deadline:
                raise DeadlineError(
                    f"rank {self._chair} named no common step within {self._timeout + grace:g} s; "
                    "it may be dead"
                )
            self._rest()
        agreed = msgspec.json.decode(self._store.get(self._key("agreed")), type=_Agreed)
        if agreed.late:
            raise DeadlineError(
                f"{name_ranks(agreed.late)} of {len(self._ranks)} did not come to a common step "
                f"within {self._timeout:g} s; a process that is alive answers at any moment"
            )
        return agreed

    def _rest(self) -> None:
        # Whoever is waited for may be dead: a loop that has ended does not wait with the others.
        if self._closing.wait(self._pause(_WAIT_SECONDS)):
            raise _OverError

    def _leave(self, over: int) -> None:
        """This rank is done with a round; the last removes its notes."""
        names = ["left", "asked", "agreed", "count", *(f"said/{r}" for r in self._ranks)]
        with suppress(RuntimeError):
            if self._store.add(self._key("left", over), 1) == len(self._ranks):
                for name in names:
                    self._store.delete_key(self._key(name, over))

    def _pause(self, seconds: float) -> float:
        return seconds + _SECONDS_PER_RANK * len(self._ranks)

    def _set(self, name: str, note: msgspec.Struct) -> None:
        self._store.set(self._key(name), msgspec.json.encode(note))

    def _key(self, name: str, number: int | None = None) -> str:
        return f"{self._topic}/{self._round if number is None else number}/{name}"

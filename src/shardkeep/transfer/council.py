"""How do the ranks of a save agree, without a collective and without waiting for ever?

They leave notes in the c10d Store that every torchrun job has. One rank, the chair, collects what
all say and announces what follows. Whoever fails says so, and everyone hears it instead of waiting
on. No note is read by more ranks than need it, and none is left behind.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

from shardkeep.errors import (
    DeadlineError,
    RankFailedError,
    ShardkeepError,
    failure_of_kind,
    name_ranks,
)
from shardkeep.transfer.clock import Clock

_FIRST_PAUSE = 0.0002
_LONGEST_PAUSE = 0.02
# A chair that is there gets this much longer: when its own wait ends, it says who is late.
_GRACE = 0.5
_MAX_GRACE_SECONDS = 30.0

# Whoever leaves last clears all of them, also those in which it had no part.
_PHASES = ("plan", "views", "agree", "write", "explain", "keys", "own", "load", "choose")


class NoteStore(Protocol):
    """What is used of a c10d Store."""

    def set(self, key: str, value: str | bytes, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def add(self, key: str, amount: int, /) -> int: ...
    def check(self, keys: list[str], /) -> bool: ...
    def multi_get(self, keys: list[str], /) -> list[bytes]: ...
    def delete_key(self, key: str, /) -> bool: ...
    def has_extended_api(self) -> bool: ...


class Council(Protocol):
    """The ranks that act together in one save."""

    @property
    def me(self) -> int: ...
    @property
    def ranks(self) -> Sequence[int]: ...
    @property
    def chair(self) -> int: ...
    def report(self, phase: str, note: bytes) -> None:
        """Tell the chair."""
        ...

    def collect(self, phase: str, ranks: Sequence[int] | None = None) -> Mapping[int, bytes]:
        """On the chair: what every rank reported, or each of `ranks`."""
        ...

    def announce(self, phase: str, note: bytes) -> None:
        """On the chair: tell everyone."""
        ...

    def hear(self, phase: str) -> bytes:
        """What the chair announced."""
        ...

    def fail(self, phase: str, error: BaseException, *, undone: bool) -> None:
        """Tell everyone that this rank gives up; `undone` if nothing can be committed any more."""
        ...

    def leave(self, *, done: bool) -> None:
        """This rank needs no note any more; `done` if it heard the outcome."""
        ...


class SoloCouncil:
    """A single process: what it says, it hears."""

    def __init__(self, me: int = 0) -> None:
        self.me = self.chair = me
        self.ranks: Sequence[int] = (me,)
        self._notes: dict[str, bytes] = {}

    def report(self, phase: str, note: bytes) -> None:
        self._notes[phase] = note

    def collect(self, phase: str, ranks: Sequence[int] | None = None) -> Mapping[int, bytes]:
        return {self.me: self._notes[phase]}

    def announce(self, phase: str, note: bytes) -> None:
        self._notes[f"{phase}/all"] = note

    def hear(self, phase: str) -> bytes:
        return self._notes[f"{phase}/all"]

    def fail(self, phase: str, error: BaseException, *, undone: bool) -> None:
        """Nobody else is there to hear it."""

    def leave(self, *, done: bool) -> None:
        self._notes.clear()


class StoreCouncil:
    """Ranks that share a Store. `topic` is the same on all, and new for each save."""

    def __init__(
        self,
        store: NoteStore,
        ranks: Sequence[int],
        me: int,
        *,
        topic: str,
        timeout: float,
        clock: Clock | None = None,
    ) -> None:
        self.ranks = tuple(ranks)
        self.me = me
        self.chair = min(self.ranks)
        self._store = store
        self._topic = topic
        self._timeout = timeout
        self._clock = clock or Clock()
        self._phases: list[str] = []

    def report(self, phase: str, note: bytes) -> None:
        self._remember(phase)
        with self._asking(phase):
            self._store.set(self._key(phase, self.me), note)
            self._store.add(self._key(phase, "count"), 1)

    def collect(self, phase: str, ranks: Sequence[int] | None = None) -> Mapping[int, bytes]:
        self._remember(phase)
        with self._asking(phase):
            return self._collect(phase, self.ranks if ranks is None else ranks)

    def _collect(self, phase: str, ranks: Sequence[int]) -> Mapping[int, bytes]:
        deadline, pause = self._clock.monotonic() + self._timeout, _FIRST_PAUSE
        while self._store.add(self._key(phase, "count"), 0) < len(ranks):
            self._raise_failure()
            if self._clock.monotonic() > deadline:
                raise self._late(phase, ranks)
            # Short waits outside the Store: its lock also serves the training's own calls.
            self._clock.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        return dict(zip(ranks, self._get_all([self._key(phase, r) for r in ranks]), strict=True))

    def _get_all(self, keys: list[str]) -> list[bytes]:
        # Not every Store can answer for several keys at once: a FileStore cannot.
        if self._store.has_extended_api():
            return self._store.multi_get(keys)
        return [self._store.get(key) for key in keys]

    def announce(self, phase: str, note: bytes) -> None:
        self._remember(phase)
        with self._asking(phase):
            self._store.set(self._key(phase, "all"), note)

    def hear(self, phase: str) -> bytes:
        self._remember(phase)
        with self._asking(phase):
            return self._hear(phase, self._key(phase, "all"))

    def _hear(self, phase: str, key: str) -> bytes:
        deadline, pause = self._clock.monotonic() + self._timeout, _FIRST_PAUSE
        grace = min(_GRACE * self._timeout, _MAX_GRACE_SECONDS)
        while not self._store.check([key]):
            self._raise_failure()
            if self._clock.monotonic() > deadline:
                if grace and self._store.check([self._key(phase, self.chair)]):
                    deadline, grace = deadline + grace, 0.0
                    continue
                raise DeadlineError(
                    f"{phase}: rank {self.chair} has not answered within {self._timeout:g} s; "
                    "it may be dead or waiting for others. The outcome is unknown on this rank"
                )
            self._clock.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        return self._store.get(key)

    def fail(self, phase: str, error: BaseException, *, undone: bool) -> None:
        note = {
            "rank": self.me,
            "phase": phase,
            "error": f"{type(error).__name__}: {error}",
            "kind": error.kind if isinstance(error, ShardkeepError) else "",
            "input": isinstance(error, ValueError | TypeError),
            "undone": undone,
        }
        # The first failure is the cause; what follows from it would hide it, and so would a Store
        # that is gone.
        with suppress(RuntimeError):
            if self._store.add(self._key("failed", "count"), 1) == 1:
                self._store.set(self._key("failed", "note"), json.dumps(note))

    @contextmanager
    def _asking(self, phase: str) -> Generator[None]:
        """Turns the errors of a Store whose process is gone into one of ours."""
        try:
            yield
        except ShardkeepError:
            raise
        except RuntimeError as error:
            raise RankFailedError(
                {self.me: f"the c10d Store does not answer; its process may be dead ({error})"},
                phase,
            ) from error

    def _raise_failure(self) -> None:
        if not self._store.check([self._key("failed", "note")]):
            return
        note = json.loads(self._store.get(self._key("failed", "note")))
        failure = failure_of_kind(note["kind"], is_input=note["input"])(
            {note["rank"]: note["error"]}, note["phase"]
        )
        failure.undone = note["undone"]
        raise failure

    def _late(self, phase: str, ranks: Sequence[int]) -> DeadlineError:
        late = [rank for rank in ranks if not self._store.check([self._key(phase, rank)])]
        return DeadlineError(
            f"{phase}: {name_ranks(late)} of {len(ranks)} did not report within "
            f"{self._timeout:g} s; nothing was committed"
        )

    def leave(self, *, done: bool) -> None:
        # With the Store, what was left in it is gone, too.
        with suppress(RuntimeError):
            self._leave(done=done)

    def _leave(self, *, done: bool) -> None:
        if done:
            # All was collected before there was an outcome: each rank clears up after itself.
            self._delete([self._key(phase, self.me) for phase in self._phases])
        if self._store.add(self._key("left", "count"), 1) == len(self.ranks):
            self._clear()

    def _clear(self) -> None:
        """The last to leave removes what is left."""
        phases = dict.fromkeys([*_PHASES, *self._phases])
        for phase in phases:
            self._delete([self._key(phase, "count"), self._key(phase, "all")])
        if self._store.check([self._key("failed", "note")]):
            self._delete([self._key(phase, rank) for phase in phases for rank in self.ranks])
        self._delete([f"{self._topic}/{name}" for name in ("failed/count", "failed/note")])
        self._delete([self._key("left", "count")])

    def _delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._store.delete_key(key)

    def _remember(self, phase: str) -> None:
        if phase not in self._phases:
            self._phases.append(phase)

    def _key(self, phase: str, of: object) -> str:
        return f"{self._topic}/{phase}/{of}"

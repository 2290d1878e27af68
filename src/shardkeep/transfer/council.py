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
    ConflictError,
    DeadlineError,
    RankFailedError,
    ShardkeepError,
    failure_of_kind,
    name_ranks,
)
from shardkeep.transfer.bounded_store import NoteStore, bounded, let_go
from shardkeep.transfer.clock import Clock

# Between two questions to the Store. They grow, the more so the more ranks ask it, within limits.
_FIRST_PAUSE = 0.0002
_PAUSE_PER_RANK = 0.00002
_LONGEST_PAUSES = 0.004, 0.3
# A chair that is there gets this much longer: when its own wait ends, it says who is late.
_GRACE = 0.5
_MAX_GRACE_SECONDS = 1.0
# The least that a question to the Store may take, however late it is.
_MIN_SECONDS = 0.5
_MAX_NAMED = 8
# So long whoever fails first has to say why, before another rank's reason is heard instead.
_FIRST_WORD_SECONDS = 0.2

# Whoever leaves last clears all of them, also those in which it had no part.
_PHASES = (
    *("plan", "views", "agree", "write", "explain", "explained"),
    *("keys", "own", "share", "load", "choose"),
    *("hosts", "manifest", "asked", "upload", "uploaded"),
)


class Council(Protocol):
    """The ranks that act together in one save."""

    @property
    def me(self) -> int: ...
    @property
    def ranks(self) -> Sequence[int]: ...
    @property
    def chair(self) -> int: ...
    def report(self, phase: str, note: bytes, *, word: bytes = b"") -> None:
        """Tell the chair. What has a word is taken only by those who expect it.

        Else a note of an earlier run, which came to the Store when that was over, might be taken.
        """
        ...

    def collect(
        self, phase: str, ranks: Sequence[int] | None = None, *, word: bytes = b""
    ) -> Mapping[int, bytes]:
        """On the chair: what every rank reported, or each of `ranks`, with this word."""
        ...

    def announce(self, phase: str, note: bytes, *, word: bytes = b"") -> None:
        """On the chair: tell everyone."""
        ...

    def hear(self, phase: str, *, word: bytes = b"") -> bytes:
        """What the chair announced, with this word."""
        ...

    def look(self, phase: str) -> None:
        """Raise if a rank has given up meanwhile. From any thread; does not wait."""
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

    def report(self, phase: str, note: bytes, *, word: bytes = b"") -> None:
        self._notes[phase] = note

    def collect(
        self, phase: str, ranks: Sequence[int] | None = None, *, word: bytes = b""
    ) -> Mapping[int, bytes]:
        return {self.me: self._notes[phase]}

    def announce(self, phase: str, note: bytes, *, word: bytes = b"") -> None:
        self._notes[f"{phase}/all"] = note

    def hear(self, phase: str, *, word: bytes = b"") -> bytes:
        return self._notes[f"{phase}/all"]

    def look(self, phase: str) -> None:
        """Nobody else is there to give up."""

    def fail(self, phase: str, error: BaseException, *, undone: bool) -> None:
        """Nobody else is there to hear it."""

    def leave(self, *, done: bool) -> None:
        self._notes.clear()


class StoreCouncil:
    """Ranks that share a Store. `topic` is the same on all, and new for each save.

    Every wait for others, and for the Store itself, ends `timeout` seconds after it began, or at
    most 2 s later.
    """

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
        self._topic = topic
        self._timeout = timeout
        self._clock = clock or Clock()
        self._deadline = self._clock.monotonic() + timeout
        least, most = _LONGEST_PAUSES
        self._longest_pause = min(max(least, _PAUSE_PER_RANK * len(self.ranks)), most)
        self._store = bounded(store, self._seconds_left)
        self._phases: list[str] = []
        self._seat: int | None = None
        """Which of those who came to this council I am, from 1; 0 if that was not to be learnt."""

    def report(self, phase: str, note: bytes, *, word: bytes = b"") -> None:
        self._remember(phase)
        with self._asking(phase):
            self._store.set(self._key(phase, self.me), word + note)
            self._store.add(self._key(phase, "count"), 1)

    def collect(
        self, phase: str, ranks: Sequence[int] | None = None, *, word: bytes = b""
    ) -> Mapping[int, bytes]:
        self._remember(phase)
        with self._asking(phase):
            return self._collect(phase, self.ranks if ranks is None else ranks, word)

    def _collect(self, phase: str, ranks: Sequence[int], word: bytes) -> Mapping[int, bytes]:
        pause = _FIRST_PAUSE
        while (notes := self._counted(phase, ranks, word)) is None:
            self._raise_failure()
            if self._clock.monotonic() > self._deadline:
                return self._require_all(phase, ranks, word)
            # Short waits outside the Store: its lock also serves the training's own calls.
            self._clock.sleep(pause)
            pause = min(2 * pause, self._longest_pause)
        return notes

    def _counted(self, phase: str, ranks: Sequence[int], word: bytes) -> Mapping[int, bytes] | None:
        # The count is quickly asked for, but it does not tell whose notes were counted: asking for
        # one that is not there would wait within the Store, for as long as the Store likes.
        counted = self._store.add(self._key(phase, "count"), 0)
        return self._reported(phase, ranks, word) if counted >= len(ranks) else None

    def _reported(
        self, phase: str, ranks: Sequence[int], word: bytes
    ) -> Mapping[int, bytes] | None:
        """What each of these ranks has reported; None unless all have."""
        keys = [self._key(phase, rank) for rank in ranks]
        if not self._store.check(keys):
            return None
        notes = self._get_all(keys)
        if not all(note.startswith(word) for note in notes):
            return None
        return {rank: note[len(word) :] for rank, note in zip(ranks, notes, strict=True)}

    def _get_all(self, keys: list[str]) -> list[bytes]:
        # Not every Store can answer for several keys at once: a FileStore cannot.
        if self._store.has_extended_api():
            return self._store.multi_get(keys)
        return [self._store.get(key) for key in keys]

    def announce(self, phase: str, note: bytes, *, word: bytes = b"") -> None:
        self._remember(phase)
        with self._asking(phase):
            self._store.set(self._key(phase, "all"), word + note)

    def hear(self, phase: str, *, word: bytes = b"") -> bytes:
        self._remember(phase)
        with self._asking(phase):
            return self._hear(phase, word)

    def _hear(self, phase: str, word: bytes) -> bytes:
        pause = _FIRST_PAUSE
        grace = min(_GRACE * self._timeout, _MAX_GRACE_SECONDS)
        while (note := self._announced(phase, word)) is None:
            self._raise_failure()
            if self._clock.monotonic() > self._deadline:
                if grace and self._has_chair_come():
                    self._deadline, grace = self._deadline + grace, 0.0
                    continue
                if (note := self._announced(phase, word)) is not None:
                    # Announced just now: a chair that has left has taken its own notes with it.
                    break
                # A process that was stopped for a while has not heard what was said meanwhile.
                self._raise_failure()
                raise self._unanswered(phase)
            self._clock.sleep(pause)
            pause = min(2 * pause, self._longest_pause)
        return note

    def _announced(self, phase: str, word: bytes) -> bytes | None:
        key = self._key(phase, "all")
        note = self._store.get(key) if self._store.check([key]) else None
        return note[len(word) :] if note is not None and note.startswith(word) else None

    def look(self, phase: str) -> None:
        with self._asking(phase):
            self._raise_failure()

    def _has_chair_come(self) -> bool:
        # It reports in some phases only: in any of them will do.
        return any(self._store.check([self._key(phase, self.chair)]) for phase in self._phases)

    def fail(self, phase: str, error: BaseException, *, undone: bool) -> None:
        note = {
            "rank": self.me,
            "phase": phase,
            "error": f"{type(error).__name__}: {error}",
            "kind": error.kind if isinstance(error, ShardkeepError) else "",
            "input": isinstance(error, ValueError | TypeError),
        }
        # The first failure is the cause; what follows from it would hide it, and so would a Store
        # that is gone.
        with suppress(RuntimeError):
            # A rank that was started anew does not know what it has reported in its first life.
            note["undone"] = undone and self._has_seat()
            if self._store.add(self._key("failed", "count"), 1) == 1 or not self._is_known():
                self._store.set(self._key("failed", "note"), json.dumps(note))

    def _is_known(self) -> bool:
        """Whether the first to fail has said why. It may have died in the middle of it."""
        deadline = self._clock.monotonic() + _FIRST_WORD_SECONDS
        while not self._store.check([self._key("failed", "note")]):
            if self._clock.monotonic() > deadline:
                return False
            self._clock.sleep(self._longest_pause)
        return True

    def _has_seat(self) -> bool:
        """Whether I am one of the first to come here, of whom there are as many as ranks.

        Whoever comes after them is a process that was started anew, or the Store still has the
        notes of an earlier run: what is announced here is not meant for it. If one that was started
        anew is among the first, one of the others is not, and has no part in what follows: so
        nothing is agreed on before every rank has come, once.
        """
        if self._seat is None:
            self._seat = 0
            self._seat = self._store.add(self._key("seats", "count"), 1)
        return 1 <= self._seat <= len(self.ranks)

    @contextmanager
    def _asking(self, phase: str) -> Generator[None]:
        """A deadline for all that follows; errors of a Store that is gone become ours."""
        self._deadline = self._clock.monotonic() + self._timeout
        try:
            if not self._has_seat():
                raise ConflictError(
                    f"{phase}: rank {self.me} comes to an act that all {len(self.ranks)} ranks "
                    "have come to before; a process was started anew, or the Store has the notes "
                    "of an earlier run. Start all ranks together, with a Store of their own"
                )
            yield
        except ShardkeepError:
            raise
        except RuntimeError as error:
            raise RankFailedError(
                {
                    self.me: "the c10d Store does not answer; its process may be dead, stopped or "
                    f"cut off ({error})"
                },
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

    def _seconds_left(self) -> float:
        return max(_MIN_SECONDS, self._deadline - self._clock.monotonic())

    def _unanswered(self, phase: str) -> DeadlineError:
        """Said by a rank that waited in vain: the chair may be waiting for somebody, too."""
        late = self._missing(phase, self.ranks) if self._has_reported(phase) else []
        if late and late != [self.chair]:
            what = f"{name_ranks(late)} of {len(self.ranks)} did not report within"
        else:
            what = f"rank {self.chair} has not answered within"
        return DeadlineError(
            f"{phase}: {what} {self._timeout:g} s; it may be dead or waiting for others. "
            "The outcome is unknown on this rank"
        )

    def _has_reported(self, phase: str) -> bool:
        return self._store.check([self._key(phase, self.me)])

    def _missing(self, phase: str, ranks: Sequence[int]) -> list[int]:
        """The first few that have not reported: by halves, since every rank may ask this."""
        if self._store.check([self._key(phase, rank) for rank in ranks]):
            return []
        if len(ranks) == 1:
            return list(ranks)
        half = len(ranks) // 2
        found = self._missing(phase, ranks[:half])
        if len(found) < _MAX_NAMED:
            found += self._missing(phase, ranks[half:])
        return found[:_MAX_NAMED]

    def _require_all(self, phase: str, ranks: Sequence[int], word: bytes) -> Mapping[int, bytes]:
        """What was reported; raise unless every rank has, counted or not: it may have died then."""
        while (notes := self._reported(phase, ranks, word)) is None:
            late = [rank for rank in ranks if self._reported(phase, [rank], word) is None]
            if late:
                # As in `_hear`: this process may have been stopped.
                self._raise_failure()
                raise DeadlineError(
                    f"{phase}: {name_ranks(late)} of {len(ranks)} did not report within "
                    f"{self._timeout:g} s; nothing was committed"
                )
        return notes

    def leave(self, *, done: bool) -> None:
        # With the Store, what was left in it is gone, too.
        with suppress(RuntimeError):
            self._leave(done=done)
        let_go(self._store)

    def _leave(self, *, done: bool) -> None:
        if not self._has_seat():
            # What is left here is not mine to clear.
            return
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
        self._delete([self._key("left", "count"), self._key("seats", "count")])

    def _delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._store.delete_key(key)

    def _remember(self, phase: str) -> None:
        if phase not in self._phases:
            self._phases.append(phase)

    def _key(self, phase: str, of: object) -> str:
        return f"{self._topic}/{phase}/{of}"

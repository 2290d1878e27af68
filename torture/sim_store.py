"""How does a c10d Store behave whose host may die or stall, and whose messages may be lost?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from torture.sim_processes import Act, Fault, Process, unheard

# A wait for a key that never comes ends by the Store's own timeout, as in PyTorch.
_WAIT_SECONDS = 300.0
_WAIT_STEP = 0.5


@dataclass(frozen=True)
class Partition:
    """For a while some processes do not reach the Store."""

    start: float
    stop: float
    names: Sequence[str]


class SimStore:
    """Notes by key, kept by one process; None: by one that never fails."""

    def __init__(
        self,
        dice: Random,
        *,
        latency: float,
        patience: float,
        partitions: Sequence[Partition] = (),
        watch: Callable[[Process, str, bytes | None], None] = lambda *_: None,
    ) -> None:
        self.notes: dict[str, bytes] = {}
        self.host: Process | None = None
        self.is_lossy = bool(partitions)
        """Whether a message was lost, or may have been."""
        self._dice = dice
        self._latency = latency
        self._patience = patience
        self._partitions = partitions
        self._watch = watch

    def seconds(self) -> float:
        """How long the next call takes."""
        random = self._dice.random()
        return self._latency * (0.3 + random if random < 0.99 else 50.0)

    def answer(self, act: Act) -> Any:
        """What the host does when a call arrives."""
        if self.host is not None and not self.host.alive:
            raise RuntimeError("Connection reset by peer")
        return act()

    def silent_until(self, process: Process) -> float:
        """Until when this process gets no answer."""
        now, silent = process.hub.now, 0.0
        for one in self._partitions:
            if one.start <= now < one.stop and process.name in one.names:
                silent = max(silent, one.stop)
        if self.host is not None and self.host is not process and self.host.alive:
            silent = max(silent, self.host.stalled_until)
        if silent > now:
            self.is_lossy = True
        return silent

    def route(self, process: Process, act: Act) -> tuple[float, Act]:
        """When a call is answered, and how; a silence that lasts too long is an error."""
        if self.host is None and not self._partitions:
            return self.seconds(), act
        silence = self.silent_until(process) - process.hub.now
        if silence <= 0:
            return self.seconds(), lambda: self.answer(act)
        if silence <= self._patience:
            return silence + self.seconds(), lambda: self.answer(act)
        if self._dice.random() < 0.5:
            late = process.hub.now + silence + self.seconds()
            process.hub.at(late, None, lambda: unheard(lambda: self.answer(act)))
        return self._patience, _no_answer

    def trouble(self, process: Process, act: Act, fault: Fault) -> tuple[float, Act]:
        """The call, its answer or both are lost, or the call comes late."""
        self.is_lossy = True
        kind = fault.variant % 3
        if kind == 1:
            unheard(lambda: self.answer(act))
        if kind == 2:
            late = process.hub.now + fault.seconds
            process.hub.at(late, None, lambda: unheard(lambda: self.answer(act)))
        return self.seconds(), _no_answer

    # What the host does

    def set(self, process: Process, key: str, value: bytes) -> None:
        self.notes[key] = value
        self._watch(process, key, value)

    def add(self, key: str, amount: int) -> int:
        value = int(self.notes.get(key, b"0")) + amount
        self.notes[key] = b"%d" % value
        return value

    def has(self, keys: Sequence[str]) -> bool:
        notes = self.notes
        return keys[0] in notes if len(keys) == 1 else all(key in notes for key in keys)

    def delete(self, process: Process, key: str) -> bool:
        self._watch(process, key, None)
        return self.notes.pop(key, None) is not None


def _no_answer() -> None:
    raise RuntimeError("Socket Timeout")


class StoreClient:
    """The Store as one process sees it: a NoteStore."""

    def __init__(self, store: SimStore, process: Process) -> None:
        self._store = store
        self._process = process

    def set(self, key: str, value: str | bytes, /) -> None:
        data = value.encode() if isinstance(value, str) else value
        self._step(f"set {key}", lambda: self._store.set(self._process, key, data))

    def get(self, key: str, /) -> bytes:
        return self.multi_get([key])[0]

    def multi_get(self, keys: list[str], /) -> list[bytes]:
        notes = self._store.notes
        for _ in range(int(_WAIT_SECONDS / _WAIT_STEP)):
            found = self._step(
                f"get {keys[0]}" + (f" and {len(keys) - 1} more" if len(keys) > 1 else ""),
                lambda: [notes[key] for key in keys] if self._store.has(keys) else None,
            )
            if found is not None:
                return found
            self._process.sleep(_WAIT_STEP)
        raise RuntimeError(f"wait timeout after {_WAIT_SECONDS:g} s")

    def add(self, key: str, amount: int, /) -> int:
        if amount == 0:
            return self._poll(lambda: self._store.add(key, 0))
        return self._step(f"add {key}", lambda: self._store.add(key, amount))

    def check(self, keys: list[str], /) -> bool:
        return self._poll(lambda: self._store.has(keys))

    def delete_key(self, key: str, /) -> bool:
        return self._step(f"delete {key}", lambda: self._store.delete(self._process, key))

    def has_extended_api(self) -> bool:
        return True

    def _poll(self, act: Act) -> Any:
        return self._process.ask(*self._store.route(self._process, act))

    def _step(self, what: str, act: Act) -> Any:
        store, process = self._store, self._process
        seconds, routed = store.route(process, act)
        return process.step(what, seconds, routed, lambda fault: store.trouble(process, act, fault))

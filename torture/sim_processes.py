"""How do simulated processes live? In virtual time, from event to event, alike for the same seed.

Each is a greenlet that runs real code until it asks the world for something. What it asks for
happens a little later, whether the process is still there then or not, as with a message under way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

from greenlet import GreenletExit, greenlet

from shardkeep.transfer.clock import Clock

Act = Callable[[], Any]
_MAX_EVENTS = 20_000_000
_SLOW_SECONDS = 0.05


@dataclass(frozen=True)
class Fault:
    """What befalls a process as it asks for something."""

    kind: str
    """`die before`, `die in flight`, `die after`, `stall`, `interrupt` or `trouble`."""
    variant: int = 0
    """Which trouble: whoever is asked has several."""
    seconds: float = 0.0


class Hub:
    """Virtual time, and what is to happen in it."""

    def __init__(self, trace: bool = False) -> None:
        self.now = 0.0
        self.current: Process | None = None
        """Whose code runs."""
        self.trace: list[str] | None = [] if trace else None
        self._events: list[tuple[float, int, Process | None, Act | None]] = []
        self._count = 0

    def at(self, when: float, process: Process | None, act: Act | None) -> None:
        """Have `act` happen, and `process` go on with what it gives."""
        self._count += 1
        heappush(self._events, (when, self._count, process, act))

    def run(self) -> None:
        """Let everything happen that is to happen."""
        for _ in range(_MAX_EVENTS):
            if not self._events:
                return
            self.now, _, process, act = heappop(self._events)
            if process is None:
                if act is not None:
                    act()
            elif act is None:
                process.resume(None)
            else:
                try:
                    found = act()
                except Exception as error:
                    process.resume(None, error)
                else:
                    process.resume(found)
        raise RuntimeError("the simulation does not come to an end")

    def say(self, who: object, what: str) -> None:
        """Write down what happens, if somebody wants to read it."""
        if self.trace is not None:
            self.trace.append(f"{self.now:9.4f}  {who!s:8} {what}")


class Process(Clock):
    """A process: its code, its clock, and whether it lives, stalls or is dead."""

    def __init__(
        self, hub: Hub, name: str, main: Act, faults: Mapping[int, Fault] | None = None
    ) -> None:
        self.hub = hub
        self.name = name
        self.alive = True
        self.ended = False
        self.stalled_until = 0.0
        self.stalled_seconds = 0.0
        self.afflicted = False
        """Whether anything befell it: only then others may blame it."""
        self.slow_seconds = 0.0
        """Spent on steps that took long without a fault, as a disk has them."""
        self.interrupted = False
        self._faults = faults or {}
        self._steps = 0
        self._main = main
        self._code: greenlet | None = None

    def __str__(self) -> str:
        return self.name

    def start(self, when: float) -> None:
        """Have it begin."""
        self.hub.at(when, None, self._begin)

    def _begin(self) -> None:
        if self.alive:
            self._code = greenlet(self._run)
            self.resume(None)

    def _run(self, _: object) -> None:
        self._main()
        self.ended = True

    def resume(self, found: Any, error: Exception | None = None) -> None:
        """Go on; if it is stalled, when it no longer is."""
        if not self.alive or self._code is None:
            return
        if self.hub.now < self.stalled_until:
            self.hub.at(self.stalled_until, None, lambda: self.resume(found, error))
            return
        self.hub.current = self
        if error is None:
            self._code.switch(found)
        else:
            self._code.throw(error)
        self.hub.current = None

    def kill(self) -> None:
        """Dead from now on: its code unwinds, and nothing that it does has an effect."""
        if not self.alive or self.ended:
            return
        self.hub.say(self, "dies")
        self.alive, self.afflicted = False, True
        if self._code is not None:
            self._code.throw(GreenletExit)

    def stall(self, seconds: float) -> None:
        """Stopped for a while; what it has asked for happens all the same."""
        if self.alive and not self.ended:
            self.hub.say(self, f"is stopped for {seconds:.3f} s")
            start = max(self.hub.now, self.stalled_until)
            self.stalled_until = max(self.stalled_until, self.hub.now + seconds)
            self.stalled_seconds += max(0.0, self.stalled_until - start)
            self.afflicted = True

    # What its code does

    def monotonic(self) -> float:
        return self.hub.now

    def sleep(self, seconds: float) -> None:
        self.ask(seconds, None)

    def ask(self, seconds: float, act: Act | None) -> Any:
        """What `act` gives, which happens after so many seconds."""
        if not self.alive:
            raise GreenletExit
        self.hub.at(self.hub.now + seconds, self, act)
        parent = self._code.parent if self._code is not None else None
        if parent is None:
            raise RuntimeError(f"{self} has not begun")
        return parent.switch()

    def step(
        self, what: str, seconds: float, act: Act, trouble: Callable[[Fault], tuple[float, Act]]
    ) -> Any:
        """As `ask`, for what moves the protocol on: here is where faults befall it."""
        self._steps += 1
        self.slow_seconds += seconds if seconds >= _SLOW_SECONDS else 0.0
        fault = self._faults.get(self._steps)
        if self.hub.trace is not None:
            act = self._traced(what, act)
        if fault is None or not self.alive:
            return self.ask(seconds, act)
        self.afflicted = True
        self.hub.say(self, f"{fault.kind} at {what}")
        return self._befall(fault, seconds, act, trouble)

    def _befall(
        self,
        fault: Fault,
        seconds: float,
        act: Act,
        trouble: Callable[[Fault], tuple[float, Act]],
    ) -> Any:
        match fault.kind:
            case "die before":
                self.hub.at(self.hub.now, None, self.kill)
            case "die in flight":
                self.hub.at(self.hub.now, None, self.kill)
                self.hub.at(self.hub.now + fault.seconds, None, lambda: unheard(act))
            case "die after":
                return self.ask(seconds, lambda: (act(), self.kill()))
            case "stall":
                self.stall(fault.seconds)
                self.sleep(0.0)
                return self.ask(seconds, act)
            case "interrupt":
                self.interrupted = True
                if fault.variant % 2:
                    self.ask(seconds, act)
                raise KeyboardInterrupt
            case "trouble":
                return self.ask(*trouble(fault))
            case _:
                raise ValueError(f"no fault is called {fault.kind}")
        return self.ask(3600.0, None)

    def _traced(self, what: str, act: Act) -> Act:
        def traced() -> Any:
            try:
                found = act()
            except Exception as error:
                self.hub.say(self, f"{what}: {type(error).__name__}")
                raise
            self.hub.say(self, what + ("" if found is None else f" -> {_short(found)}"))
            return found

        return traced


def unheard(act: Act) -> None:
    """It happens, and nobody learns what it gave."""
    with suppress(Exception):
        act()


def _short(found: object) -> str:
    text = repr(found)
    return text if len(text) < 60 else f"{text[:56]}..."

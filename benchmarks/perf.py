"""What did the processes of a run do while they had a processor?

Linux's `perf` looks at them after every quarter of a millisecond of CPU time.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePath
from typing import TypeVar

T = TypeVar("T")
_PERIOD_NANOSECONDS = 250_000
# A clock, since virtual machines seldom count cycles; times as `time.perf_counter` has them.
_HOW = ("-e", "cpu-clock", "-c", str(_PERIOD_NANOSECONDS), "-k", "mono", "-g", "-m", "8M")
_SHOWN = ("--no-inline", "-F", "time,period,ip,sym,dso")


@dataclass(frozen=True, slots=True)
class Frame:
    """A function, and the program, library or kernel that it is part of."""

    symbol: str
    binary: str


NOWHERE = Frame("[unknown]", "[unknown]")


@dataclass(frozen=True, slots=True)
class Sample:
    """What ran at one time: the function itself first, then its callers."""

    time: float
    cpu_seconds: float
    frames: tuple[Frame, ...]

    @property
    def name(self) -> str:
        """The function's, or that of what it is part of if nobody knows the function's."""
        leaf = self.frames[0] if self.frames else NOWHERE
        return PurePath(leaf.binary).name if leaf.symbol == NOWHERE.symbol else leaf.symbol


def recorded(act: Callable[[], T], data: Path) -> T:
    """What `act` returned; what the processes did that this thread started for it is in `data`."""
    if shutil.which("perf") is None:
        raise SystemExit(
            "a profile needs perf: install the package linux-perf (Debian), "
            "linux-tools-generic (Ubuntu) or perf (Fedora)"
        )
    with _recording(data):
        return act()


@contextmanager
def _recording(data: Path) -> Generator[None]:
    orders, order = os.pipe()
    answer, answers = os.pipe()
    # Of this thread alone: those that it forks inherit the watch, and so do their threads. If perf
    # also watched a thread that ends meanwhile, it would be told so again and again.
    whom = ("-t", str(os.getpid()), "--inherit", "--delay=-1", f"--control=fd:{orders},{answers}")
    command, said = ["perf", "record", *_HOW, *whom, "-o", str(data)], data.with_suffix(".txt")
    with said.open("w") as file:
        perf = subprocess.Popen(command, pass_fds=(orders, answers), stdout=file, stderr=file)
    os.close(orders)
    os.close(answers)
    try:
        with suppress(BrokenPipeError):
            os.write(order, b"enable\n")
        # One that ended answers nothing.
        if not os.read(answer, 16):
            raise SystemExit(f"perf does not record here:\n{said.read_text()}")
        yield
    finally:
        perf.send_signal(signal.SIGINT)
        perf.wait()
        # Not before: perf would lose what it recorded.
        os.close(order)
        os.close(answer)


def samples_of(data: Path) -> Iterator[Sample]:
    """What was recorded, in the order of time."""
    command = ["perf", "script", *_SHOWN, "-i", str(data)]
    # What it says of libraries without symbols would fill the screen.
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, errors="replace"
    ) as script:
        yield from samples_in(script.stdout or ())


def samples_in(lines: Iterable[str]) -> Iterator[Sample]:
    """What `perf script` printed: a line with time and period, its frames, an empty line."""
    head, frames = "", list[Frame]()
    for line in lines:
        if line.startswith("\t"):
            frames.append(frame_in(line))
        elif line.strip():
            head = line
        elif head:
            time, period = head.split(":")
            yield Sample(float(time), float(period) / 1e9, tuple(frames))
            head, frames = "", []


@lru_cache(2**16)
def frame_in(line: str) -> Frame:
    """From an address, a symbol that may have spaces and brackets itself, and a path in brackets.

    >>> frame_in("  7f0012 void f<int (int)>(int) (/lib/libf.so)")
    Frame(symbol='void f<int (int)>(int)', binary='/lib/libf.so')
    """
    _, _, named = line.strip().replace(" (deleted))", ")").partition(" ")
    symbol, _, binary = named.rpartition(" (")
    return Frame(symbol, binary.removesuffix(")"))

"""What does reading a hostile folder do behind one's back? Run by `hostile`, in its own process.

`python -m torture.hostile_reader ROOT SCALE` reads every folder that is named on its standard
input, and prints for each a line of JSON. First it measures memory. Then it reads all of them once
more under an audit hook, which cannot be taken away again: by then what is imported when first
needed is there, so that nothing is left to be imported, compiled or opened outside of the folder.
"""

from __future__ import annotations

import ctypes
import gc
import io
import json
import os
import resource
import shutil
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import shardkeep as sk
from shardkeep.cli.looking import show, verify
from shardkeep.errors import ShardkeepError

FORBIDDEN = frozenset(
    (
        "code.__new__",
        "compile",
        "ctypes.dlopen",
        "exec",
        "ftplib.connect",
        "function.__new__",
        "import",
        "marshal.load",
        "marshal.loads",
        "os.chdir",
        "os.chmod",
        "os.exec",
        "os.fork",
        "os.kill",
        "os.posix_spawn",
        "os.spawn",
        "os.startfile",
        "os.system",
        "pickle.find_class",
        "pty.spawn",
        "shelve.open",
        "shutil.unpack_archive",
        "socket.bind",
        "socket.connect",
        "socket.getaddrinfo",
        "subprocess.Popen",
        "sys.addaudithook",
        "urllib.Request",
        "webbrowser.open",
    )
)
_PLACES = frozenset(("open", "os.listdir", "os.scandir", "os.mkdir", "os.remove", "os.rename"))

_FOR_TERMINALS = frozenset(map(chr, (*range(10), *range(11, 32), *range(127, 160))))
_SECONDS = 60
_ROOM_NBYTES = 4 * 2**30


@dataclass
class Reading:
    """What came of one folder."""

    name: str
    outcomes: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """For each act the class of the error and its text; nothing if there was none."""
    grown_nbytes: int = 0
    """The most memory that was taken, above what the process had before."""
    events: list[str] = field(default_factory=list[str])
    """What the audit hook saw that has no place in reading."""


class Guard:
    """The audit hook."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.armed = False
        self.seen: list[str] = []
        self.opened = 0

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.armed:
            return
        if event in FORBIDDEN:
            self.seen.append(f"{event} {args!r}"[:200])
        elif event in _PLACES:
            self.opened += 1
            self._look(event, args[0])

    def _look(self, event: str, place: Any) -> None:
        """Names alone are looked up in a folder that is open already."""
        if isinstance(place, str | bytes | os.PathLike):
            name = os.fsdecode(place)
            if os.sep in name and not name.startswith(self.root):
                self.seen.append(f"{event} {name}"[:200])


def acts_of(path: Path, dest: Path, *, typed: bool) -> dict[str, Callable[[], object]]:
    """Everything that a user does with what somebody else has sent; `typed`: commands, too."""
    acts: dict[str, Callable[[], object]] = {
        "load": lambda: sk.load(path),
        "look": lambda: _look(path),
    }
    if not (path / "manifest.json").is_file():
        acts["import"] = lambda: sk.import_checkpoint(path, dest, durable=False)
    if typed:
        acts["show"] = lambda: _printed(lambda: show(path, stats=True))
        acts["verify"] = lambda: _printed(lambda: verify(path))
    return acts


def _printed(command: Callable[[], object]) -> None:
    """What a command prints has nothing in it that a terminal would obey."""
    with redirect_stdout(io.StringIO()) as printed:
        command()
    signs = set(printed.getvalue()) & _FOR_TERMINALS
    if signs:
        raise AssertionError(f"it prints {sorted(signs)}")


def _look(path: Path) -> None:
    with sk.open(path) as checkpoint:
        checkpoint.report()
        checkpoint.tree()
        problems = checkpoint.verify().problems
        for key in checkpoint:
            checkpoint.info(key)
    if problems:
        raise sk.CorruptError(problems[0])


def outcomes(path: Path, dest: Path, *, typed: bool) -> dict[str, list[str]]:
    """What each act ends in."""
    found: dict[str, list[str]] = {}
    for name, act in acts_of(path, dest, typed=typed).items():
        found[name] = _outcome(act)
        if (dest / "manifest.json").exists() and found[name]:
            found[name] = ["AssertionError", "a refused import left a checkpoint"]
        shutil.rmtree(dest, ignore_errors=True)
    return found


def _outcome(act: Callable[[], object]) -> list[str]:
    try:
        with _deadline():
            act()
    except ShardkeepError as error:
        return [type(error).__name__, str(error)]
    except BaseException as error:
        return [f"undeclared {type(error).__name__}", str(error)[:500]]
    return []


@contextmanager
def _deadline() -> Iterator[None]:
    def give_up(*_: object) -> None:
        raise TimeoutError(f"it takes longer than {_SECONDS} s")

    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def measured(act: Callable[[], object]) -> int:
    """The most memory that `act` took."""
    gc.collect()
    # Free memory that was kept would hide what is taken from it.
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    act()
    return max(0, _status("VmHWM") - before)


def main(root: Path, scale: str) -> None:
    """Read all, twice."""
    typed = scale == "long"
    warnings.simplefilter("ignore")
    os.chdir(root / "cwd")
    sys.path.insert(0, str(root / "modules"))
    paths = {name: Path(path) for name, path in json.load(sys.stdin).items()}
    dest = root / "imported"
    for name, path in paths.items():
        if name.endswith("/sound"):
            outcomes(path, dest, typed=typed)
    limit = _status("VmSize") + _ROOM_NBYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    # What was imported is not looked through again and again.
    gc.freeze()
    readings = {name: Reading(name) for name in paths}
    for name, path in paths.items():
        one = readings[name]
        one.grown_nbytes = measured(
            lambda p=path, r=one: r.outcomes.update(outcomes(p, dest, typed=typed))
        )
    guard = Guard(str(root))
    sys.addaudithook(guard)
    for name, path in paths.items():
        guard.armed, guard.seen = True, []
        outcomes(path, dest, typed=typed)
        guard.armed = False
        readings[name].events = guard.seen
    for one in readings.values():
        print(json.dumps(asdict(one)))
    print(json.dumps({"name": "", "opened": guard.opened}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])

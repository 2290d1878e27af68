"""How long does a command of `shardkeep` take?

    python -m benchmarks.command_line [--quick | --large] [--cold]

First the start: `--help` and `ls` of a run of 100 steps, beside an empty Python. Then the commands
that read: `verify`, `show --stats` and `diff`, of 1 GiB (quick 128 MiB, large 10 GiB), beside plain
reads of the same files by as many threads. Medians of several turns, of the time on the clock and
of what all cores worked; the peak memory is the largest of any turn, start-up included. With
--cold files leave the page cache before each turn. The figures go to
build/bench/command_line.json, too.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

KEPT_AT = Path(__file__).parents[1] / "build" / "bench" / "command_line.json"
SHARDKEEP = str(Path(sys.executable).with_name("shardkeep"))
STEP_NBYTES = 8 * 2**20
SIDE = 2048
_NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"


@dataclass(frozen=True)
class Line:
    """What was measured of one command."""

    what: str
    seconds: float
    cpu_seconds: float
    nbytes: int
    peak_nbytes: int


Turn = tuple[float, float, int]
"""Seconds on the clock, seconds of all cores, peak memory."""


def apart(make: Callable[..., None], *arguments: object) -> None:
    """In a process of its own: a child's peak memory counts what its parent had."""
    process = multiprocessing.get_context("spawn").Process(target=make, args=arguments)
    process.start()
    process.join()
    if process.exitcode != 0:
        raise SystemExit(f"{make.__name__} failed")


def make_run(path: Path) -> None:
    import torch

    import shardkeep as sk

    model = torch.nn.Linear(64, 64)
    with sk.Checkpointer(path, durable=False) as run:
        for step in range(10, 1010, 10):
            run.save(step, {"model": model, "step": step}, metrics={"loss": 1 / step})


def make_checkpoint(path: Path, nbytes: int, shift: float) -> None:
    """Half float32, half bfloat16, in matrices of 16 and 8 MiB and a few large ones."""
    import torch

    import shardkeep as sk

    generator = torch.Generator().manual_seed(0)
    numel = SIDE * SIDE
    count = nbytes // (6 * numel)
    state = {}
    for number in range(max(1, count)):
        values = torch.randn(SIDE, SIDE, generator=generator).add_(shift)
        state[f"layers.{number}.wide"] = values
        state[f"layers.{number}.narrow"] = values.bfloat16()
    sk.save(state, path, durable=False)


def child(words: list[str], codes: tuple[int, ...]) -> Turn:
    """The seconds and the peak memory of a process."""
    start = time.perf_counter()
    # An installed package has its bytecode: the first turn writes it, whatever was set here.
    clean = {name: value for name, value in os.environ.items() if name != _NO_BYTECODE}
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, env=clean)
    _, status, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in codes:
        raise SystemExit(f"{' '.join(words)} ended with {process.returncode}")
    return seconds, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024


def plain_read(folders: list[Path]) -> Turn:
    """The same files by as many threads as there are cores, each in pieces of 8 MiB."""
    pieces = [
        (file, at)
        for folder in folders
        for file in sorted(folder.glob("*.safetensors"))
        for at in range(0, file.stat().st_size, STEP_NBYTES)
    ]

    def read(piece: tuple[Path, int]) -> None:
        with open(piece[0], "rb", buffering=0) as file:
            os.preadv(file.fileno(), [buffers[hash(piece) % len(buffers)]], piece[1])

    buffers = [bytearray(STEP_NBYTES) for _ in range(8)]
    start, worked = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(read, pieces))
    return time.perf_counter() - start, time.process_time() - worked, 0


def forget(folder: Path) -> None:
    for file in folder.glob("*/*.safetensors"):
        fd = os.open(file, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def take_turns(
    acts: dict[str, tuple[int, Callable[[], Turn]]],
    turns: int,
    before: Callable[[], None],
) -> list[Line]:
    found: dict[str, list[Turn]] = {name: [] for name in acts}
    for _ in range(turns):
        for name, (_, act) in acts.items():
            before()
            found[name].append(act())
    return [
        Line(
            name,
            statistics.median(turn[0] for turn in found[name]),
            statistics.median(turn[1] for turn in found[name]),
            nbytes,
            max(turn[2] for turn in found[name]),
        )
        for name, (nbytes, _) in acts.items()
    ]


def starts(folder: Path, turns: int) -> list[Line]:
    apart(make_run, folder / "run")
    words = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "shardkeep --help": [SHARDKEEP, "--help"],
        "shardkeep ls, 100 steps": [SHARDKEEP, "ls", str(folder / "run")],
        "shardkeep show --help": [SHARDKEEP, "show", "--help"],
    }
    acts = {name: (0, lambda one=one: child(one, (0,))) for name, one in words.items()}
    return take_turns(acts, turns, lambda: None)


def reads(folder: Path, nbytes: int, turns: int, cold: bool) -> list[Line]:
    one, same, other = (folder / name for name in ("one", "same", "other"))
    apart(make_checkpoint, one, nbytes, 0.0)
    shutil.copytree(one, same)
    apart(make_checkpoint, other, nbytes, 1e-3)
    size = sum(file.stat().st_size for file in one.glob("*.safetensors"))

    def command(*words: object, codes: tuple[int, ...] = (0,)) -> Callable[[], Turn]:
        return lambda: child([SHARDKEEP, *map(str, words)], codes)

    acts = {
        "plain read": (size, lambda: plain_read([one])),
        "verify": (size, command("verify", one)),
        "show --stats": (size, command("show", one, "--stats")),
        "plain read of two": (2 * size, lambda: plain_read([one, same])),
        "diff, all equal": (2 * size, command("diff", one, same)),
        "diff, all changed": (2 * size, command("diff", one, other, codes=(1,))),
    }
    return take_turns(acts, turns, (lambda: forget(folder)) if cold else lambda: None)


def show(lines: list[Line]) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for name in ("median", "all cores", "speed", "peak memory"):
        table.add_column(name, justify="right", no_wrap=True)
    for line in lines:
        speed = f"{line.nbytes / line.seconds / 1e9:.2f} GB/s" if line.nbytes else ""
        peak = f"{line.peak_nbytes / 2**20:,.0f} MiB" if line.peak_nbytes else ""
        table.add_row(line.what, f"{line.seconds:.3f} s", f"{line.cpu_seconds:.3f} s", speed, peak)
    Console(width=None if Console().is_terminal else 130).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.command_line")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="128 MiB, fewer turns")
    size.add_argument("--large", action="store_true", help="10 GiB, fewer turns")
    parser.add_argument("--cold", action="store_true", help="not from the page cache")
    options = parser.parse_args()
    nbytes = 2**27 if options.quick else 10 * 2**30 if options.large else 2**30
    turns = 3 if options.quick or options.large else 5
    with tempfile.TemporaryDirectory(prefix="shardkeep-bench-") as folder:
        lines = starts(Path(folder), 4 * turns)
        lines += reads(Path(folder), nbytes, turns, options.cold)
    show(lines)
    KEPT_AT.parent.mkdir(parents=True, exist_ok=True)
    KEPT_AT.write_text(json.dumps([asdict(line) for line in lines], indent=2) + "\n")


if __name__ == "__main__":
    main()

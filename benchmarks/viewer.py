"""How long does the viewer take over a checkpoint of many tensors?

    python -m benchmarks.viewer [--tensors 100000]

`shardkeep serve` is started on a checkpoint that two ranks saved and on a folder of safetensors
files, and asked what a browser asks: the page of the checkpoint, a tensor, its values, and load
plans. Each is asked once, by the clock and by what the server's cores worked.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, OpenerDirector, build_opener

from rich.console import Console
from rich.table import Table

from tests.viewer.large import key_of, make_checkpoint, make_folder

MAKERS = {"a checkpoint of two ranks": make_checkpoint, "a folder of safetensors": make_folder}
_TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description="Time what the viewer answers.")
    parser.add_argument("--tensors", type=int, default=100_000)
    count = parser.parse_args().tensors
    console = Console(width=100)
    for name, make in MAKERS.items():
        with tempfile.TemporaryDirectory() as scratch:
            table = Table(
                "", "seconds", "CPU seconds", title=f"{name}, {count:,} tensors", box=None
            )
            for what, seconds, worked in timed(make(Path(scratch) / "large", count), count):
                table.add_row(what, f"{seconds:.2f}", f"{worked:.2f}")
            console.print(table)


def questions(count: int) -> dict[str, str]:
    """What a browser asks, by what it is."""
    key = key_of(count // 2)
    asked = {
        "page of the checkpoint": ("checkpoint", {}),
        "a tensor's tiling": ("tensor", {"key": key}),
        "its values": ("values", {"key": key}),
        "what if dp=8": ("what-if", {"mesh": "dp=8"}),
        "what if dp=4,tp=2,pp=4": ("what-if", {"mesh": "dp=4,tp=2,pp=4"}),
    }
    return {
        what: f"api/{page}?{urlencode({'at': '0', **query})}"
        for what, (page, query) in asked.items()
    }


def timed(path: Path, count: int) -> Iterator[tuple[str, float, float]]:
    """What was done, how long it took, and how much of that the server worked."""
    begun = time.perf_counter()
    with served(path) as (process, url):
        browser = build_opener(HTTPCookieProcessor())
        ask(browser, url)
        yield "server ready", time.perf_counter() - begun, worked_by(process.pid)
        for what, page in questions(count).items():
            begun, before = time.perf_counter(), worked_by(process.pid)
            ask(browser, f"{url.split('?')[0]}{page}")
            yield what, time.perf_counter() - begun, worked_by(process.pid) - before


@contextmanager
def served(path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "shardkeep", "serve", str(path), "--no-open"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait()


def ask(browser: OpenerDirector, url: str) -> None:
    with browser.open(url) as answer:
        answer.read()


def worked_by(pid: int) -> float:
    """Seconds of all cores that a process has taken so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


if __name__ == "__main__":
    main()

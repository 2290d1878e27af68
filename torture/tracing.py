"""How is a process struck at its Nth system call? By strace, which attaches to it and injects.

A signal that is injected comes as the call is entered: what the call would have done is not done.
Calls are counted for each thread by itself.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

# `?`: not every machine has all of them.
CALLS = ("pwritev", "pwritev2", "fsync", "link", "linkat", "rename", "renameat", "renameat2",
         "unlink", "unlinkat", "mkdir", "mkdirat")  # fmt: skip
_LINE = re.compile(r"(\d+)\s+(\w+)\(")
_SECONDS = 30.0


@contextmanager
def traced(pid: int, *options: str) -> Generator[None]:
    """strace is attached to a process; at the end it has let go of it, or the process is gone."""
    command = ["strace", "-qq", "-p", str(pid), *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_until_attached(pid, process)
        yield
    finally:
        process.terminate()
        process.wait()


def _wait_until_attached(pid: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        status = Path(f"/proc/{pid}/status").read_text()
        if f"TracerPid:\t{process.pid}\n" in status:
            return
        time.sleep(0.001)
    raise AssertionError(f"strace did not attach to process {pid}")


def only(calls: Sequence[str]) -> str:
    """The option that traces these calls."""
    return "--trace=" + ",".join(f"?{call}" for call in calls)


def inject(call: str, number: int, what: str) -> str:
    """The option that does `what` at the Nth call."""
    return f"--inject=?{call}:{what}:when={number}"


def count_calls(log: Path, pid: int) -> tuple[Counter[str], Counter[str]]:
    """How often each call was made by the first thread of a process, and at most by another."""
    by_thread: dict[int, Counter[str]] = {}
    for line in log.read_text().splitlines():
        if found := _LINE.match(line):
            by_thread.setdefault(int(found[1]), Counter())[found[2]] += 1
    first = by_thread.pop(pid, Counter[str]())
    others = Counter[str]()
    for counts in by_thread.values():
        others |= counts
    return first, others


def cannot_trace() -> str:
    """Why processes cannot be traced here; empty if they can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            ["strace", "-o", f"{folder}/log", inject("fsync", 1, "error=EIO"), "true"],
            capture_output=True,
            check=False,
        )
    if done.returncode:
        return f"strace cannot trace here ({done.stderr.decode().strip()})"
    return _cannot_attach()


def _cannot_attach() -> str:
    pid = os.fork()
    if pid == 0:
        time.sleep(_SECONDS)
        os._exit(0)
    try:
        with traced(pid, only(["fsync"])):
            return ""
    except AssertionError as error:
        return f"{error}: it is not allowed here"
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)

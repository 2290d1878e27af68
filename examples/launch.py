"""How are the training script's processes started, and which process is which rank?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SCRIPT = Path(__file__).with_name("train_gpt.py")


class Torchrun(subprocess.Popen[bytes]):
    """The process that starts the ranks and watches over them."""

    def workers(self) -> dict[int, int]:
        """The process of each rank."""
        return workers_of(self.pid)


@contextmanager
def torchrun(run: Path, *options: object, processes: int, log: Path) -> Iterator[Torchrun]:
    """The training script on several processes, none of which is left afterwards."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(processes), str(SCRIPT), str(run), *map(str, options)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with log.open("wb") as output:
        process = Torchrun(command, stdout=output, stderr=output, env=environment)
        try:
            yield process
        finally:
            workers = process.workers() if process.poll() is None else {}
            for pid in (*workers.values(), *([process.pid] if workers else [])):
                os.kill(pid, signal.SIGKILL)
            process.wait()


def workers_of(launcher: int) -> dict[int, int]:
    """The process of each rank that a torchrun has started."""
    found: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int(folder.joinpath("stat").read_text().rpartition(")")[2].split()[1])
            if parent == launcher:
                variables = folder.joinpath("environ").read_text().split("\0")
                rank = next(it for it in variables if it.startswith("RANK="))
                found[int(rank.removeprefix("RANK="))] = int(folder.name)
        except (OSError, StopIteration):
            continue  # it has just ended, or is no worker
    return found

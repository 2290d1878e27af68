"""What does a save in the background cost the training that goes on meanwhile?

    python -m benchmarks.async_saves [--quick]

One process computes in a loop and saves its state now and then. Measured are the time that a call
blocks the loop, for the first save and for later ones, the time until the checkpoint is complete,
and how much slower the loop's steps are meanwhile; beside a warm copy of the same bytes by two
threads, and PyTorch's own async_save with a thread and with a process. Contenders take turns. The
figures go to build/bench/async_saves.json, too.
"""

# torch lists its public names nowhere that a type checker looks.
# pyright: reportPrivateImportUsage=false

import argparse
import json
import logging
import os
import shutil
import socket
import tempfile
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from rich.console import Console
from rich.table import Table
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

import shardkeep
from benchmarks.state_dicts import transformer

KEPT_AT = Path(__file__).parents[1] / "build" / "bench" / "async_saves.json"
PLACE = "/dev/shm"
State = dict[str, torch.Tensor]


class Saver(ABC):
    name: str

    @abstractmethod
    def begin(self, state: State, path: Path) -> Callable[[], object]:
        """Returns when the state may be changed again; what it returns waits for the end."""


class Shardkeep(Saver):
    name = "shardkeep"

    def begin(self, state: State, path: Path) -> Callable[[], object]:
        return shardkeep.save_async(state, path, durable=False).result


class Dcp(Saver):
    def __init__(self, name: str, kind: AsyncCheckpointerType, *, cached: bool = False) -> None:
        self.name = name
        self.kind = kind
        options = StagingOptions(False, False, False, False)
        self.stager = DefaultStager(options) if cached else None

    def begin(self, state: State, path: Path) -> Callable[[], object]:
        writer = dcp.FileSystemWriter(path, sync_files=False, thread_count=2)
        future: Any = dcp.async_save(
            state,
            storage_writer=writer,
            async_checkpointer_type=self.kind,
            async_stager=self.stager,
        )
        return future.result


@dataclass
class Figures:
    name: str
    blocked: list[float] = field(default_factory=list[float])
    total: list[float] = field(default_factory=list[float])
    steps: list[float] = field(default_factory=list[float])
    """Seconds of each step of the loop while a save was under way."""


class Loop:
    """A step is a product of matrices, on one thread, and a change to the whole state."""

    def __init__(self) -> None:
        self.a = torch.randn(768, 768)

    def step(self) -> float:
        start = time.perf_counter()
        self.a = torch.nn.functional.normalize(self.a @ self.a)
        return time.perf_counter() - start


def measure(saver: Saver, figures: Figures, state: State, folder: Path, loop: Loop) -> None:
    path = folder / "checkpoint"
    start = time.perf_counter()
    wait = saver.begin(state, path)
    figures.blocked.append(time.perf_counter() - start)
    # In a thread: the loop must not stop to ask.
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(lambda: (wait(), time.perf_counter())[1])
        while not ended.done():
            figures.steps.append(loop.step())
        figures.total.append(ended.result() - start)
    shutil.rmtree(path)


def copy_seconds(state: State, repetitions: int) -> float:
    """A warm copy of the same bytes by two threads."""
    tensors = list(state.values())
    twins = [tensor.clone() for tensor in tensors]
    halves = [range(0, len(tensors), 2), range(1, len(tensors), 2)]

    def copy(half: range) -> None:
        for index in half:
            twins[index].copy_(tensors[index])

    spent: list[float] = []
    with ThreadPoolExecutor(2) as pool:
        for _ in range(repetitions):
            start = time.perf_counter()
            list(pool.map(copy, halves))
            spent.append(time.perf_counter() - start)
    return median(spent)


def run(layers: int, repetitions: int) -> tuple[list[Figures], float, float, int]:
    shapes = transformer(layers=layers)
    state = {name: torch.full(shape, float(n)) for n, (name, shape) in enumerate(shapes.items())}
    savers = [
        Shardkeep(),
        Dcp("DCP, thread", AsyncCheckpointerType.THREAD),
        Dcp("DCP, thread, cached staging", AsyncCheckpointerType.THREAD, cached=True),
        Dcp("DCP, process", AsyncCheckpointerType.PROCESS),
    ]
    figures = {saver.name: Figures(saver.name) for saver in savers}
    loop = Loop()
    quiet = [loop.step() for _ in range(200)]
    with tempfile.TemporaryDirectory(dir=PLACE, prefix="shardkeep-bench-") as folder:
        for turn in range(repetitions + 1):
            for saver in savers[turn % len(savers) :] + savers[: turn % len(savers)]:
                measure(saver, figures[saver.name], state, Path(folder), loop)
            quiet += [loop.step() for _ in range(50)]
    nbytes = sum(tensor.nbytes for tensor in state.values())
    return list(figures.values()), copy_seconds(state, 9), median(quiet), nbytes


def show(
    several: list[Figures], copied: float, quiet: float, nbytes: int, console: Console
) -> None:
    table = Table(title=f"Saves in the background, {nbytes / 2**20:,.0f} MiB, tmpfs")
    table.add_column("contender", no_wrap=True)
    for name in ("first blocks", "later ones", "x copy", "until complete", "steps meanwhile"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in several:
        later = median(one.blocked[1:])
        table.add_row(
            one.name,
            f"{one.blocked[0]:.3f} s",
            f"{later:.3f} s",
            f"{later / copied:.2f}",
            f"{median(one.total[1:]):.3f} s",
            f"{median(one.steps) / quiet:.2f} x",
        )
    console.print(table)
    console.print(
        f"A warm copy by two threads: {copied:.3f} s. A step without a save: {1e3 * quiet:.1f} ms."
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.async_saves")
    parser.add_argument("--quick", action="store_true", help="256 MiB instead of 1 GiB")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    # What torchrun sets: PyTorch's process looks for it.
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
    }
    dist.init_process_group("gloo")
    console = Console(width=None if Console().is_terminal else 130)
    with console.status("saving in the background"):
        found = run(*((5, 3) if options.quick else (23, 5)))
    show(*found, console)
    KEPT_AT.parent.mkdir(parents=True, exist_ok=True)
    kept = {"contenders": [asdict(one) for one in found[0]], "copy": found[1], "step": found[2]}
    KEPT_AT.write_text(json.dumps(kept, indent=2) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

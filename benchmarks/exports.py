"""What does it cost to make one model of what many ranks saved?

    python -m benchmarks.exports [--quick]

Four processes save a transformer in shards of rows, 4 GiB of float32, a quarter of it one
embedding. Then one fresh process exports it as transformers reads it, within 256 MiB; beside it
PyTorch's own ways: consolidate_safetensors_files for shards that its Hugging Face writer saved,
and dcp_to_torch_save, which gives no safetensors. Raw is a copy of the same bytes by two threads,
the limit. Contenders take turns, on tmpfs. The figures go to build/bench/exports.json, too.
"""

# torch lists its public names nowhere that a type checker looks.
# pyright: reportPrivateImportUsage=false

import argparse
import json
import logging
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

import torch
import torch.distributed.checkpoint as dcp
from rich.console import Console
from rich.table import Table
from safetensors import safe_open
from torch.distributed.checkpoint import HuggingFaceStorageWriter
from torch.distributed.checkpoint._consolidate_hf_safetensors import consolidate_safetensors_files
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from benchmarks.peaks import peak_nbytes
from benchmarks.ranks import on_ranks
from benchmarks.state_dicts import Shapes, describe, transformer
from benchmarks.stored_states import Placing, cells, make
from shardkeep import save as shardkeep_save
from shardkeep.transfer.progress import Meter
from shardkeep.translate.exporting import export
from shardkeep.translate.opening import open_source

KEPT_AT = Path(__file__).parents[1] / "build" / "bench" / "exports.json"
PLACE = "/dev/shm"
RANKS = 4
THREADS = 2
MAX_MEMORY_NBYTES = 256 * 2**20
_STEP_NBYTES = 8 * 2**20


def shapes_of(quick: bool) -> Shapes:
    width, vocabulary = (512, 2**15) if quick else (2048, 2**17)
    ends: Shapes = {"embed.weight": (vocabulary, width), "output.weight": (vocabulary, width)}
    return {**transformer(layers=12, width=width), **ends}


def save_shardkeep(shapes: Shapes, path: Path) -> None:
    shardkeep_save(make(shapes, Placing.ROWS, filled=True), path, durable=False)


def save_hugging_face(shapes: Shapes, path: Path) -> None:
    writer = HuggingFaceStorageWriter(str(path), save_distributed=True)
    dcp.save(make(shapes, Placing.ROWS, filled=True), storage_writer=writer)


def save_dcp(shapes: Shapes, path: Path) -> None:
    writer = dcp.FileSystemWriter(path, sync_files=False)
    dcp.save(make(shapes, Placing.ROWS, filled=True), storage_writer=writer)


def export_hf(source: Path, dest: Path, *, verify: bool) -> None:
    opened = open_source(source)
    export(
        opened,
        dest,
        to="hf",
        max_memory_nbytes=MAX_MEMORY_NBYTES,
        threads=THREADS,
        verify=verify,
        meter=Meter("exporting", None, show=False),
    )
    opened.storage.close()


def consolidate(source: Path, dest: Path) -> None:
    dest.mkdir()
    keys = [key for file in source.glob("*.safetensors") for key in _keys(file)]
    consolidate_safetensors_files(
        str(source), str(dest), dict.fromkeys(keys, 1), num_threads=THREADS
    )


def _keys(file: Path) -> list[str]:
    with safe_open(file, "pt") as opened:
        return list(opened.keys())


def to_torch_save(source: Path, dest: Path) -> None:
    dest.mkdir()
    dcp_to_torch_save(source, dest / "model.pt")


def copy_raw(source: Path, dest: Path) -> None:
    dest.mkdir()
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda file: _copy(file, dest / file.name), source.glob("*.safetensors")))


def _copy(file: Path, to: Path) -> None:
    buffer = memoryview(bytearray(_STEP_NBYTES))
    with open(file, "rb", buffering=0) as reader, open(to, "wb", buffering=0) as writer:
        while count := reader.readinto(buffer):
            writer.write(buffer[:count])


@dataclass
class Contender:
    name: str
    save: Callable[[Shapes, Path], None]
    run: Callable[[Path, Path], None]
    seconds: list[float] = field(default_factory=list[float])
    peaks: list[int] = field(default_factory=list[int])


def contenders() -> list[Contender]:
    return [
        Contender("shardkeep", save_shardkeep, lambda a, b: export_hf(a, b, verify=True)),
        Contender(
            "shardkeep, verify=False", save_shardkeep, lambda a, b: export_hf(a, b, verify=False)
        ),
        Contender("raw copy", save_shardkeep, copy_raw),
        Contender("DCP, consolidate_safetensors_files", save_hugging_face, consolidate),
        Contender("DCP, dcp_to_torch_save", save_dcp, to_torch_save),
    ]


def measure(contender: Contender, source: Path, dest: Path) -> None:
    """Once, in a process of its own."""

    def act() -> tuple[float, int]:
        spent: list[float] = []

        def timed() -> None:
            start = time.perf_counter()
            contender.run(source, dest)
            spent.append(time.perf_counter() - start)

        peak = peak_nbytes(timed)
        return spent[0], peak

    ((seconds, peak),) = on_ranks(1, act)
    contender.seconds.append(seconds)
    contender.peaks.append(peak)


def run(shapes: Shapes, repetitions: int) -> list[Contender]:
    several = contenders()
    with tempfile.TemporaryDirectory(dir=PLACE, prefix="shardkeep-bench-") as folder:
        for turn in range(repetitions):
            # One source at a time: memory holds no more.
            for save in (save_shardkeep, save_hugging_face, save_dcp):
                source, dest = Path(folder, "source"), Path(folder, "dest")
                on_ranks(RANKS, lambda save=save, source=source: save(shapes, source))
                mine = [one for one in several if one.save is save]
                for one in mine if turn % 2 else reversed(mine):
                    measure(one, source, dest)
                    if turn == 0 and any(dest.glob("model*.safetensors")):
                        require_right(shapes, dest, one.name)
                    shutil.rmtree(dest)
                shutil.rmtree(source)
    return several


def require_right(shapes: Shapes, dest: Path, name: str) -> None:
    """Raise unless every tensor is there as it was made."""
    (file,) = dest.glob("model*.safetensors")
    with safe_open(file, "pt") as opened:
        for number, (key, shape) in enumerate(shapes.items()):
            found = opened.get_tensor(key)
            if not torch.equal(found, cells(shape, number)):
                raise AssertionError(f"{name}: {key} is wrong")


def show(several: list[Contender], title: str, console: Console) -> None:
    table = Table(title=title)
    table.add_column("contender", no_wrap=True)
    for column in ("median", "least", "most", "extra memory"):
        table.add_column(column, justify="right", no_wrap=True)
    for one in several:
        table.add_row(
            one.name,
            *(f"{pick(one.seconds):.2f} s" for pick in (median, min, max)),
            f"{max(one.peaks) / 2**20:,.0f} MiB",
        )
    console.print(table)
    console.print("Extra memory: the peak of VmHWM beyond what the process had before.")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exports")
    parser.add_argument("--quick", action="store_true", help="256 MiB instead of 4 GiB")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    console = Console(width=None if Console().is_terminal else 110)
    shapes = shapes_of(options.quick)
    title = f"From {RANKS} ranks' shards to one model, {describe(shapes)}, tmpfs"
    with console.status("exporting"):
        several = run(shapes, 3)
    show(several, title, console)
    KEPT_AT.parent.mkdir(parents=True, exist_ok=True)
    kept = [
        {key: value for key, value in asdict(one).items() if key not in ("save", "run")}
        for one in several
    ]
    KEPT_AT.write_text(json.dumps({"title": title, "contenders": kept}, indent=2) + "\n")


if __name__ == "__main__":
    main()

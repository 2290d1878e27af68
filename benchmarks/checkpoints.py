"""How fast are checkpoints saved and loaded, beside other libraries and the raw limit?

    python -m benchmarks.checkpoints [--quick] [words of a workload ...]

All contenders take turns on the same state, on tmpfs (where CPU time shows) and on disk. What
they load is compared with what was saved. shardkeep computes and checks digests throughout. The
figures go to build/bench/checkpoints.json, too.
"""

import argparse
import gc
import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

import torch.distributed as dist
from rich.console import Console
from rich.table import Table

from benchmarks.contenders import Contender, Dcp, Raw, Safetensors, Shardkeep, TorchSave
from benchmarks.contest import peak_nbytes
from benchmarks.ranks import on_ranks
from benchmarks.state_dicts import Shapes, describe
from benchmarks.stored_states import large, make, require_equal, small

BUILD = Path(__file__).parents[1] / "build" / "bench"
TMPFS = Path("/dev/shm")

ALONE = (Shardkeep(), Dcp(2), Dcp(1), Safetensors(), TorchSave(), Raw())
TOGETHER = (Shardkeep(), Dcp(2), Dcp(1), Raw())
DURABLE = (Shardkeep(durable=True), Dcp(2, durable=True), Raw(durable=True))


@dataclass(frozen=True)
class Workload:
    """A state that some ranks save and that as many, or others, load."""

    name: str
    shapes: Shapes
    contenders: Sequence[Contender]
    ranks: int = 1
    load_ranks: int | None = None
    """Others, which hold shards of dim 1."""
    place: Path = TMPFS
    repetitions: int = 5


@dataclass(frozen=True)
class Span:
    """One act on one rank. The processes of one machine share its clock."""

    start: float
    stop: float
    cpu_seconds: float


Spans = dict[tuple[str, str], list[Span]]
"""Of each contender and act, one for each repetition."""


@dataclass(frozen=True)
class Figures:
    workload: str
    size: str
    place: str
    act: str
    contender: str
    seconds: float
    """Median of the repetitions, each from the first rank's start to the last rank's end."""
    fastest: float
    cpu_seconds: float
    """Of all ranks together; what others do on the machine hardly changes it."""


@dataclass(frozen=True)
class Peak:
    act: str
    state_nbytes: int
    peak_nbytes: int

    @property
    def target_nbytes(self) -> int:
        return round(0.03 * self.state_nbytes) + 64 * 2**20


def workloads(quick: bool) -> list[Workload]:
    """Each is named by what is special about it."""
    big, many = large(quick), small(quick)
    one = Workload("W1 large, 1 process", big, ALONE)
    turns = 1 if quick else 3
    disk = replace(one, place=BUILD)
    several = Workload("W2 large, 4 processes", big, TOGETHER, ranks=4)
    reshard = replace(several, name="W4 4 to 2, dim 0 to 1", load_ranks=2)
    return [
        one,
        disk,
        replace(disk, contenders=DURABLE),
        several,
        Workload("W3 small, 1 process", many, ALONE, repetitions=turns),
        Workload("W3 small, 4 processes", many, TOGETHER, ranks=4, repetitions=1),
        reshard,
    ]


def run(workload: Workload) -> list[Figures]:
    """The figures of all contenders."""
    workload.place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=workload.place, prefix="shardkeep-bench-") as folder:
        by_rank = on_ranks(workload.ranks, lambda: _race(workload, Path(folder)))
        if workload.load_ranks is not None:
            saves = _figures(workload, by_rank)
            others = on_ranks(workload.load_ranks, lambda: _load_only(workload, Path(folder)))
            return saves + _figures(workload, others)
    return _figures(workload, by_rank)


def _figures(workload: Workload, by_rank: Sequence[Spans]) -> list[Figures]:
    made: list[Figures] = []
    for act, name in by_rank[0]:
        turns = list(zip(*(spans[act, name] for spans in by_rank), strict=True))
        seconds = [max(s.stop for s in turn) - min(s.start for s in turn) for turn in turns]
        cpu = median(sum(s.cpu_seconds for s in turn) for turn in turns)
        place = "tmpfs" if workload.place == TMPFS else "disk"
        about = workload.name, describe(workload.shapes), place
        made.append(Figures(*about, act, name, median(seconds), min(seconds), cpu))
    return made


def _race(workload: Workload, folder: Path) -> Spans:
    state = make(workload.shapes, 0, filled=True)
    target = {} if workload.load_ranks else make(workload.shapes, 0, filled=False)
    _warm_up(workload.contenders, folder)
    spans: Spans = {}
    for turn in range(workload.repetitions):
        for number, contender in _in_turn(workload.contenders, turn):
            path = folder / str(number)
            if dist.get_rank() == 0:
                _remove(path)
                _level_the_field(workload)
            _timed(spans, ("save", contender.name), lambda: contender.save(state, path))  # noqa: B023
            if target:
                _timed(spans, ("load", contender.name), lambda: contender.load(target, path))  # noqa: B023
            if target and turn == 0:
                require_equal(target, state, contender.name)
                for tensor in target.values():
                    tensor.zero_()
    return spans


def _warm_up(contenders: Sequence[Contender], folder: Path) -> None:
    """Load the code that will run, with a state that takes no time."""
    state = make({"a": (8, 4)}, 0, filled=True)
    for number, contender in enumerate(contenders):
        contender.save(state, folder / f"warm-{number}")
        dist.barrier()
        contender.load(state, folder / f"warm-{number}")


def _load_only(workload: Workload, folder: Path) -> Spans:
    target = make(workload.shapes, 1, filled=False)
    spans: Spans = {}
    for turn in range(workload.repetitions):
        for number, contender in _in_turn(workload.contenders, turn):
            path = folder / str(number)
            load = contender.load_as_many if isinstance(contender, Raw) else contender.load
            _timed(spans, ("load", contender.name), lambda: load(target, path))  # noqa: B023
            if turn == 0 and not isinstance(contender, Raw):
                require_equal(target, make(workload.shapes, 1, filled=True), contender.name)
                for tensor in target.values():
                    tensor.zero_()
    return spans


def _in_turn(contenders: Sequence[Contender], turn: int) -> list[tuple[int, Contender]]:
    """Each with its number; who comes first changes from turn to turn."""
    numbered = list(enumerate(contenders))
    first = turn % len(numbered)
    return numbered[first:] + numbered[:first]


def _level_the_field(workload: Workload) -> None:
    """Nobody pays for what the one before left to be written, or for pages never touched before.

    A virtual machine's free memory may be with its host: the first to use it waits for it.
    """
    os.sync()
    nbytes = sum(4 * math.prod(shape) for shape in workload.shapes.values())
    with tempfile.TemporaryFile(dir=TMPFS) as file:
        piece = bytes(2**24)
        for _ in range(2 + nbytes // len(piece)):
            file.write(piece)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _timed(spans: Spans, what: tuple[str, str], act: Callable[[], object]) -> None:
    gc.collect()
    dist.barrier()
    start, cpu = time.perf_counter(), time.process_time()
    act()
    span = Span(start, time.perf_counter(), time.process_time() - cpu)
    spans.setdefault(what, []).append(span)
    dist.barrier()


def measure_peaks(shapes: Shapes) -> list[Peak]:
    """What shardkeep takes beyond the state itself, each act in a fresh process."""
    with tempfile.TemporaryDirectory(dir=TMPFS, prefix="shardkeep-bench-") as folder:
        return [
            on_ranks(1, lambda: _peak(shapes, Path(folder), act))[0]  # noqa: B023
            for act in ("save", "load")
        ]


def _peak(shapes: Shapes, folder: Path, act: str) -> Peak:
    ours = Shardkeep()
    warm = make({"a": (8, 4)}, 0, filled=True)
    ours.save(warm, folder / f"warm-{act}")
    ours.load(warm, folder / f"warm-{act}")
    state = make(shapes, 0, filled=True)
    nbytes = sum(tensor.nbytes for tensor in state.values())
    call = ours.save if act == "save" else ours.load
    return Peak(act, nbytes, peak_nbytes(lambda: call(state, folder / "large")))


def show(figures: Sequence[Figures], console: Console) -> None:
    table = Table(title="Checkpoints, digests on: median time, and CPU time of all ranks")
    for name in ("workload", "place", "act", "contender"):
        table.add_column(name, no_wrap=True)
    for name in ("median", "x ours", "fastest", "x raw", "x ours", "CPU", "x ours"):
        table.add_column(name, justify="right", no_wrap=True)
    groups: dict[tuple[str, ...], list[Figures]] = {}
    for one in figures:
        fsync = "fsync" if "fsync" in one.contender else ""
        groups.setdefault((one.workload, one.place, fsync, one.act), []).append(one)
    for several in groups.values():
        _add_rows(table, several)
    console.print(table)
    console.print(
        "x ours: how many times faster shardkeep is. Where a median is far from the fastest, the "
        "machine's memory was slow to come, not the contender."
    )


def _add_rows(table: Table, several: Sequence[Figures]) -> None:
    ours = next(one for one in several if one.contender.startswith("shardkeep"))
    raw = next((one for one in several if one.contender.startswith("raw")), None)
    for one in several:
        table.add_row(
            one.workload if one is ours else "",
            one.place if one is ours else "",
            one.act if one is ours else "",
            one.contender,
            f"{one.seconds:.3f} s",
            f"{one.seconds / ours.seconds:.1f}",
            f"{one.fastest:.3f} s",
            f"{one.fastest / raw.fastest:.1f}" if raw else "",
            f"{one.fastest / ours.fastest:.1f}",
            f"{one.cpu_seconds:.3f} s",
            f"{one.cpu_seconds / ours.cpu_seconds:.1f}",
        )
    table.add_section()


def show_peaks(peaks: Sequence[Peak], console: Console) -> None:
    for peak in peaks:
        console.print(
            f"Peak memory of {peak.act} beyond the state of {peak.state_nbytes / 2**20:,.0f} MiB: "
            f"{peak.peak_nbytes / 2**20:,.1f} MiB (target {peak.target_nbytes / 2**20:,.0f} MiB)"
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpoints")
    parser.add_argument("--quick", action="store_true", help="256 MiB instead of 2 GiB")
    parser.add_argument("words", nargs="*", help="only workloads that have one of these words")
    options = parser.parse_args()
    console = Console(width=None if Console().is_terminal else 130)
    figures: list[Figures] = []
    for workload in workloads(options.quick):
        if not options.words or any(word in workload.name for word in options.words):
            with console.status(workload.name):
                figures += run(workload)
    show(figures, console)
    peaks = [] if options.words else measure_peaks(large(options.quick))
    show_peaks(peaks, console)
    BUILD.mkdir(parents=True, exist_ok=True)
    made = {"figures": [asdict(f) for f in figures], "peaks": [asdict(p) for p in peaks]}
    (BUILD / "checkpoints.json").write_text(json.dumps(made, indent=2) + "\n")


if __name__ == "__main__":
    main()

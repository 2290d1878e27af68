"""Does planning a save or load stay cheap when the job grows?

    python -m benchmarks.planning [--quick]

Ranks are simulated: one process plans what one rank of the job, or its coordinator, would. Times
are CPU seconds of a first plan, with nothing cached. PyTorch's planner meets the same tensors.
The figures go to build/bench/planning.json, too.
"""

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.planned_models import PARALLELISMS, TENSORS, Parallelism, forget, view_of
from benchmarks.planning_crowd import commit_seconds
from benchmarks.planning_dcp import DcpFigures, plan_as_dcp
from benchmarks.planning_load import load_seconds
from shardkeep.manifest import chunk_name
from shardkeep.plan import digest_view
from shardkeep.plan.assign import plan_divisions
from shardkeep.plan.settle import settle
from shardkeep.transfer.agreement import decode_agreement, encode_agreement, make_agreement
from shardkeep.transfer.planning import tensors_to_write
from shardkeep.transfer.view_codec import encode_save_view

KEPT_AT = Path(__file__).parents[1] / "build" / "bench" / "planning.json"
RANKS = (8, 64, 512, 4096, 16384)
# The coordinator is a rank, too: in smaller jobs its own part of the model would not fit here.
CROWDS = (16384,)
DCP_RANKS = (64, 256, 1024)


@dataclass(frozen=True)
class RankFigures:
    parallelism: str
    ranks: int
    save_seconds: float
    """One rank: from layouts to the names of its chunks."""
    load_seconds: float
    """One rank of a job half as large: headers read, reads planned."""


@dataclass(frozen=True)
class CommitFigures:
    parallelism: str
    ranks: int
    seconds: float
    manifest_nbytes: int


def plan_one_rank(how: Parallelism, ranks: int) -> float:
    """CPU seconds of all that one rank computes before it writes."""
    note, me = _agreement(how, ranks), ranks // 3
    mesh = how.mesh(ranks)
    forget()
    start = time.process_time()
    entries = how.entries(mesh)
    view = view_of(entries)
    digest = digest_view(encode_save_view(view)).hex()
    agreement = decode_agreement(note)
    layouts = agreement.layouts(view, digest)
    divided = plan_divisions(tensors_to_write(entries, layouts), file_count=agreement.file_count)
    names = [
        chunk_name(key, chunk.box, entries[key].shape)
        for key, division in divided.items()
        for chunk in division.chunks_of(me)
    ]
    seconds = time.process_time() - start
    if len(names) < TENSORS // 8:
        raise AssertionError(f"rank {me} of {ranks} writes {len(names)} chunks only")
    return seconds


def _agreement(how: Parallelism, ranks: int) -> bytes:
    view = view_of(how.entries(how.mesh(ranks)))
    digest = digest_view(encode_save_view(view)).hex()
    everyone = range(ranks)
    settlement = settle([(view, everyone)])
    return encode_agreement(make_agreement("0" * 16, 2, [digest], [everyone], settlement))


def measure_ranks(repetitions: int) -> list[RankFigures]:
    return [one for how in PARALLELISMS for one in _measure_in_turns(how, repetitions)]


def _measure_in_turns(how: Parallelism, repetitions: int) -> list[RankFigures]:
    """Sizes take turns: what else the machine does meets all of them."""
    saves: dict[int, list[float]] = {ranks: [] for ranks in RANKS}
    loads: dict[int, list[float]] = {ranks: [] for ranks in RANKS}
    for _ in range(repetitions):
        for ranks in RANKS:
            saves[ranks].append(plan_one_rank(how, ranks))
            loads[ranks].append(load_seconds(how, ranks))
    return [RankFigures(how.name, n, median(saves[n]), median(loads[n])) for n in RANKS]


def measure_commits(repetitions: int) -> list[CommitFigures]:
    made: list[CommitFigures] = []
    for how in PARALLELISMS:
        for ranks in CROWDS:
            runs = [commit_seconds(how, ranks) for _ in range(repetitions)]
            seconds, nbytes = median(s for s, _ in runs), runs[0][1]
            made.append(CommitFigures(how.name, ranks, seconds, nbytes))
    return made


def measure_dcp(quick: bool) -> list[DcpFigures]:
    return [plan_as_dcp(ranks) for ranks in (DCP_RANKS[:1] if quick else DCP_RANKS)]


def show(
    ranks: list[RankFigures],
    commits: list[CommitFigures],
    dcp: list[DcpFigures],
    console: Console,
) -> None:
    console.print(_rank_table(ranks), _commit_table(commits), _dcp_table(dcp))
    skipped = [size for size in DCP_RANKS if size not in [one.ranks for one in dcp]]
    if skipped:
        console.print(f"--quick leaves out PyTorch's planner at {skipped} ranks.")


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title)
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    return table


def _rank_table(figures: list[RankFigures]) -> Table:
    table = _table(
        f"Planning on one rank, {TENSORS:,} tensors, CPU time",
        *("layout", "ranks", "save", "x 8 ranks", "load 2:1", "x 8 ranks"),
    )
    for one in figures:
        first = next(other for other in figures if other.parallelism == one.parallelism)
        table.add_row(
            one.parallelism,
            f"{one.ranks:,}",
            _ms(one.save_seconds),
            f"{one.save_seconds / first.save_seconds:.2f}",
            _ms(one.load_seconds),
            f"{one.load_seconds / first.load_seconds:.2f}",
        )
    return table


def _commit_table(figures: list[CommitFigures]) -> Table:
    table = _table(
        "The coordinator: agreement and commit, CPU time", "layout", "ranks", "time", "manifest"
    )
    for one in figures:
        kib = f"{one.manifest_nbytes / 1024:,.0f} KiB"
        table.add_row(one.parallelism, f"{one.ranks:,}", _ms(one.seconds), kib)
    return table


def _dcp_table(figures: list[DcpFigures]) -> Table:
    table = _table(
        "torch DCP's coordinator, FSDP, CPU time",
        *("", "ranks", "global plan", "pickle metadata", "metadata"),
    )
    for one in figures:
        mib = f"{one.metadata_nbytes / 2**20:,.1f} MiB"
        table.add_row("DCP", f"{one.ranks:,}", _ms(one.plan_seconds), _ms(one.pickle_seconds), mib)
    return table


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f} ms"


def keep(path: Path, **figures: list[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    made = {name: [asdict(one) for one in several] for name, several in figures.items()}
    path.write_text(json.dumps(made, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planning")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, less of DCP")
    options = parser.parse_args()
    console = Console(width=None if Console().is_terminal else 130)
    repetitions = 3 if options.quick else 9
    with console.status("planning"):
        ranks = measure_ranks(repetitions)
        commits = measure_commits(1 if options.quick else 3)
        dcp = measure_dcp(options.quick)
    show(ranks, commits, dcp, console)
    keep(KEPT_AT, ranks=ranks, commits=commits, dcp=dcp)


if __name__ == "__main__":
    main()

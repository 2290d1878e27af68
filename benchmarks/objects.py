"""How fast are checkpoints saved to an object store and loaded from it, beside DCP and the limit?

    python -m benchmarks.objects [--quick] [--repetitions N] [--contenders NAME ...]
                                 [words of a workload ...]

The store is a SeaweedFS on this machine, so that clients and server share its cores; all contenders
meet the same one, turn by turn. DCP writes and reads by fsspec (s3fs). The limit is obstore alone:
the same bytes between the same memory and the store, in parts, without names, digests or a commit.
Beside the time stands who used the processors meanwhile, and what the server says it was asked.
The figures go to build/objects.json, too.
"""

import argparse
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch.distributed as dist
from rich.console import Console
from rich.table import Table

from benchmarks.object_contenders import DcpFsspec, Plain, Shardkeep
from benchmarks.places import BUILD
from benchmarks.ranks import on_ranks
from benchmarks.server_load import ServerLoad
from benchmarks.state_dicts import Shapes, describe, many_small, transformer
from benchmarks.stored_states import Placing, State, make, require_equal, zero
from benchmarks.turns import Span, in_turn
from torture.object_servers import S3Server, cannot_serve, seaweedfs

RANKS = 4


@dataclass(frozen=True)
class Turn:
    """One act on one rank, and what the server did for all of them."""

    span: Span
    server: ServerLoad


Turns = dict[tuple[str, str], list[Turn]]
"""Of each act and contender, one for each repetition."""


@dataclass(frozen=True)
class Workload:
    """A state that 4 ranks save and that as many, or others, load."""

    name: str
    shapes: Shapes
    repetitions: int
    only: tuple[str, ...]
    """Starts of names of those who take part; nobody named: all."""
    load_ranks: int | None = None
    placing: Placing = Placing.ROWS


@dataclass(frozen=True)
class Figures:
    workload: str
    size: str
    act: str
    contender: str
    seconds: float
    """Median of the repetitions, each from the first rank's start to the last rank's end."""
    fastest: float
    cpu_seconds: float
    """Of all ranks together, the median; and of the server."""
    server_cpu_seconds: float
    requests: dict[str, int]
    """Of all ranks together, in the last repetition; and the bytes that the server sent them."""
    sent_nbytes: int

    @property
    def busy(self) -> float:
        """The part of all processors that was in use."""
        used = self.cpu_seconds + self.server_cpu_seconds
        return used / (self.seconds * len(os.sched_getaffinity(0)))


def workloads(quick: bool, turns: int, only: tuple[str, ...]) -> list[Workload]:
    big, little = transformer(layers=5 if quick else 24), many_small(1000 if quick else 5000)
    return [
        Workload("large", big, turns, only),
        Workload("small", little, turns, only),
        Workload("reshard, 4 to 2, dim 0 to 1", big, turns, only, load_ranks=2),
        Workload("HSDP 2x2", transformer(layers=5), turns, only, placing=Placing.HSDP),
    ]


def run(workload: Workload, server: S3Server) -> list[Figures]:
    by_rank = on_ranks(RANKS, lambda: _race(workload, server))
    if workload.load_ranks is None:
        return _figures(workload, by_rank)
    others = on_ranks(workload.load_ranks, lambda: _load_only(workload, server))
    return _figures(workload, others)


def _contenders(workload: Workload, server: S3Server, turn: int = 0) -> list[Any]:
    """Everybody who takes part, another one first in each turn."""
    alone = Shardkeep(server, "shardkeep, share none", "none", saves=False)
    # It loads what the one before it has saved in this turn.
    made = [[Shardkeep(server), alone], [DcpFsspec(server)], [Plain(server)]]
    chosen = [some for some in made if some[0].name.startswith(workload.only or ("",))]
    return [one for some in in_turn(chosen, turn) for one in some]


def _saves(contender: Any) -> bool:
    return not isinstance(contender, Shardkeep) or contender.saves


def _path(workload: Workload, contender: Any, turn: int) -> str:
    name = contender.name if _saves(contender) else "shardkeep"
    return f"bench/{workload.name}/{name}/{turn}".replace(" ", "-").replace(",", "")


def _race(workload: Workload, server: S3Server) -> Turns:
    state = make(workload.shapes, workload.placing, filled=True)
    target = {} if workload.load_ranks else make(workload.shapes, workload.placing, filled=False)
    _warm_up(workload, server)
    _make_room(workload, server, state, target)
    turns: Turns = {}
    for turn in range(workload.repetitions):
        for one in _contenders(workload, server, turn):
            path = _path(workload, one, turn)
            if _saves(one):
                _time(turns, "save", one, lambda one=one, path=path: one.save(state, path))
            if target:
                _time(turns, "load", one, lambda one=one, path=path: one.load(target, path))
                _check(one, target, state)
    return turns


def _warm_up(workload: Workload, server: S3Server) -> None:
    """Load the code that will run, with a state that takes no time."""
    state = make({"a": (8, 4)}, Placing.ROWS, filled=True)
    for one in _contenders(workload, server):
        path = f"{_path(workload, one, 0)}-warm-{dist.get_world_size()}"
        if _saves(one):
            one.save(state, path)
            dist.barrier()
        one.load(state, path)


def _make_room(workload: Workload, server: S3Server, state: State, target: State) -> None:
    """Whoever comes first would wait for the server's files and for memory of the processes."""
    path = f"{_path(workload, Shardkeep(server), 0)}-room"
    Shardkeep(server).save(state, path)
    dist.barrier()
    if target:
        for one in (Shardkeep(server), Plain(server)):
            one.load(target, path)


def _load_only(workload: Workload, server: S3Server) -> Turns:
    target = make(workload.shapes, Placing.COLUMNS, filled=False)
    state = make(workload.shapes, Placing.COLUMNS, filled=True)
    _warm_up(workload, server)
    turns: Turns = {}
    for turn in range(workload.repetitions):
        for one in _contenders(workload, server, turn):
            path = _path(workload, one, turn)
            _time(turns, "load", one, lambda one=one, path=path: one.load(target, path))
            _check(one, target, state)
    return turns


def _check(contender: Any, target: State, state: State) -> None:
    if not isinstance(contender, Plain):
        require_equal(target, state, contender.name)
        zero(target)


def _time(turns: Turns, act: str, contender: Any, call: Any) -> None:
    if dist.get_rank() == 0:
        # What others have written is on the disk before it is anybody's turn.
        os.sync()
    dist.barrier()
    before = ServerLoad.of(contender.server)
    dist.barrier()
    start, cpu = time.perf_counter(), time.process_time()
    call()
    span = Span(start, time.perf_counter(), time.process_time() - cpu)
    dist.barrier()
    load = ServerLoad.of(contender.server).since(before)
    turns.setdefault((act, contender.name), []).append(Turn(span, load))


def _figures(workload: Workload, by_rank: Sequence[Turns]) -> list[Figures]:
    made: list[Figures] = []
    for act, name in by_rank[0]:
        turns = list(zip(*(turns[act, name] for turns in by_rank), strict=True))
        spans = [[one.span for one in turn] for turn in turns]
        seconds = [max(s.stop for s in turn) - min(s.start for s in turn) for turn in spans]
        servers = [turn[0].server for turn in turns]
        made.append(
            Figures(
                workload.name,
                describe(workload.shapes),
                act,
                name,
                median(seconds),
                min(seconds),
                median(sum(s.cpu_seconds for s in turn) for turn in spans),
                median(server.cpu_seconds for server in servers),
                dict(servers[-1].requests),
                servers[-1].sent_nbytes,
            )
        )
    return made


def show(figures: Sequence[Figures], console: Console) -> None:
    table = Table(title="Object store: SeaweedFS on this machine, 4 processes")
    for name in ("workload", "act", "contender"):
        table.add_column(name, no_wrap=True)
    for name in ("median", "fastest", "x ours", "ranks' CPU", "server's", "busy", "MB sent"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("requests")
    for one in figures:
        ours = next(
            other
            for other in figures
            if (other.workload, other.act, other.contender) == (one.workload, one.act, "shardkeep")
        )
        asked = sorted(one.requests.items(), key=lambda item: -item[1])
        table.add_row(
            f"{one.workload}: {one.size}",
            one.act,
            one.contender,
            f"{one.seconds:.2f} s",
            f"{one.fastest:.2f} s",
            f"{one.seconds / ours.seconds:.2f}",
            f"{one.cpu_seconds:.1f} s",
            f"{one.server_cpu_seconds:.1f} s",
            f"{one.busy:.0%}",
            f"{one.sent_nbytes / 1e6:.1f}",
            ", ".join(f"{count} {kind}" for kind, count in asked),
        )
    console.print(table)
    console.print(
        "x ours: how many times as long as shardkeep's median. The limit is plain obstore. "
        "busy: of all processors, by the ranks and the server. MB sent: by the server."
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.objects")
    parser.add_argument("--quick", action="store_true", help="256 MiB instead of 1 GiB, once")
    parser.add_argument("--repetitions", type=int, default=3, help="of each contender")
    parser.add_argument("--contenders", nargs="*", default=(), help="starts of their names")
    parser.add_argument("words", nargs="*", help="only workloads that have one of these words")
    options = parser.parse_args()
    if reason := cannot_serve():
        raise SystemExit(reason)
    console = Console(width=None if Console().is_terminal else 200)
    figures: list[Figures] = []
    with seaweedfs() as server:
        turns = 1 if options.quick else options.repetitions
        for workload in workloads(options.quick, turns, tuple(options.contenders)):
            if not options.words or any(word in workload.name for word in options.words):
                found = run(workload, server)
                show(found, console)
                figures += found
    BUILD.mkdir(parents=True, exist_ok=True)
    made = json.dumps([asdict(one) for one in figures], indent=2)
    (BUILD / "objects.json").write_text(made + "\n")


if __name__ == "__main__":
    main()

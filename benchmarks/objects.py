"""How fast are checkpoints saved to an object store and loaded from it, beside DCP and the limit?

    python -m benchmarks.objects [--quick] [--once] [words of a workload ...]

The store is a SeaweedFS on this machine, so that clients and server share its cores; all contenders
meet the same one, turn by turn. DCP writes and reads by fsspec (s3fs). The limit is obstore alone:
the same bytes between the same memory and the store, in parts, without names, digests or a commit.
The figures go to build/objects.json, too.
"""

# torch lists its public names nowhere that a type checker looks.
# pyright: reportPrivateImportUsage=false

import argparse
import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from rich.console import Console
from rich.table import Table
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter

import shardkeep as sk
from benchmarks.places import BUILD
from benchmarks.ranks import on_ranks
from benchmarks.state_dicts import Shapes, describe, many_small, transformer
from benchmarks.stored_states import Placing, State, locals_of, make, require_equal
from benchmarks.turns import Span
from shardkeep.transfer.share import Share
from torture.object_servers import BUCKET, S3Server, cannot_serve, seaweedfs

RANKS = 4
_PART = 16 * 2**20
_READ = 8 * 2**20
Spans = dict[tuple[str, str], list[Span]]
"""Of each act and contender, one for each repetition."""


@dataclass(frozen=True)
class Shardkeep:
    server: S3Server
    name: str = "shardkeep"
    share: Share = "auto"

    def save(self, state: State, path: str) -> None:
        sk.save(state, sk.ObjectStorage(self.server.url(path), **self.server.options))

    def load(self, state: State, path: str) -> None:
        storage = sk.ObjectStorage(self.server.url(path), **self.server.options)
        sk.load(storage, into=state, share=self.share)


@dataclass(frozen=True)
class DcpFsspec:
    server: S3Server
    name: str = "DCP, s3fs"

    @property
    def _options(self) -> dict[str, Any]:
        given = self.server.options
        return {
            "key": given["access_key_id"],
            "secret": given["secret_access_key"],
            "endpoint_url": self.server.endpoint,
        }

    def save(self, state: State, path: str) -> None:
        writer = FsspecWriter(self.server.url(path), thread_count=2, **self._options)
        dcp.save(state, storage_writer=writer)

    def load(self, state: State, path: str) -> None:
        dcp.load(state, storage_reader=FsspecReader(self.server.url(path), **self._options))


@dataclass(frozen=True)
class Plain:
    """obstore alone."""

    server: S3Server
    name: str = "plain obstore"

    def _store(self) -> Any:
        from obstore.store import S3Store

        return S3Store(BUCKET, client_options={"allow_http": True}, **self.server.options)

    def save(self, state: State, path: str) -> None:
        from obstore import put

        store, halves = self._store(), _halves(_views(state))

        def upload(number: int) -> None:
            key = f"{path}/{dist.get_rank()}-{number}"
            pieces = (
                view[at : at + 2**20]
                for view in halves[number]
                for at in range(0, len(view), 2**20)
            )
            put(store, key, pieces, chunk_size=_PART, max_concurrency=8)

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(upload, range(2)))

    def load(self, state: State, path: str) -> None:
        """As many bytes as the state has, from as many objects, whoever wrote them."""
        from obstore import get_range, list_with_delimiter

        store = self._store()
        objects = list_with_delimiter(store, path)["objects"]
        views = _views(state)
        wanted, at = sum(map(len, views)), 0
        mine = objects[dist.get_rank() :: dist.get_world_size()]
        ranges: list[tuple[str, int, int]] = []
        for one in [*mine, *objects]:
            for start in range(0, one["size"], _READ):
                nbytes = min(_READ, one["size"] - start, wanted - at)
                if nbytes > 0:
                    ranges.append((one["path"], start, nbytes))
                    at += nbytes

        room = bytearray(_READ)

        def fetch(one: tuple[str, int, int]) -> None:
            data = get_range(store, one[0], start=one[1], length=one[2])
            # One copy, as whoever wants the bytes in memory of his own has to make.
            memoryview(room)[: one[2]] = memoryview(data)

        with ThreadPoolExecutor(16) as pool:
            list(pool.map(fetch, ranges))


def _views(state: State) -> list[memoryview]:
    return [t.contiguous().view(-1).view(torch.uint8).numpy().data for t in locals_of(state)]


def _halves(views: Sequence[memoryview]) -> list[list[memoryview]]:
    """As many bytes for each of two; small ones are joined first."""
    if len(views) > 1000:
        views = [memoryview(b"".join(views))]
    half, first = sum(map(len, views)) // 2, list[memoryview]()
    for number, view in enumerate(views):
        if len(view) >= half:
            return [[*first, view[:half]], [view[half:], *views[number + 1 :]]]
        first.append(view)
        half -= len(view)
    return [first, []]


@dataclass(frozen=True)
class Workload:
    """A state that 4 ranks save and that as many, or others, load."""

    name: str
    shapes: Shapes
    load_ranks: int | None = None
    repetitions: int = 3


@dataclass(frozen=True)
class Figures:
    workload: str
    size: str
    act: str
    contender: str
    seconds: float
    """Median of the repetitions, each from the first rank's start to the last rank's end."""
    fastest: float


def workloads(quick: bool, once: bool) -> list[Workload]:
    big = transformer(layers=5 if quick else 24)
    turns = 1 if quick or once else 3
    return [
        Workload("large", big, repetitions=turns),
        Workload("small", many_small(1000 if quick else 5000), repetitions=turns),
        Workload("reshard, 4 to 2, dim 0 to 1", big, load_ranks=2, repetitions=turns),
    ]


def run(workload: Workload, server: S3Server) -> list[Figures]:
    by_rank = on_ranks(RANKS, lambda: _race(workload, server))
    if workload.load_ranks is None:
        return _figures(workload, by_rank)
    others = on_ranks(workload.load_ranks, lambda: _load_only(workload, server))
    return _figures(workload, others)


def _contenders(server: S3Server) -> list[Any]:
    alone = Shardkeep(server, "shardkeep, share none", "none")
    return [Shardkeep(server), alone, DcpFsspec(server), Plain(server)]


def _in_turn(server: S3Server, turn: int) -> list[Any]:
    made = _contenders(server)
    first = turn % len(made)
    return made[first:] + made[:first]


def _path(workload: Workload, contender: Any, turn: int) -> str:
    return f"bench/{workload.name}/{contender.name}/{turn}".replace(" ", "-").replace(",", "")


def _race(workload: Workload, server: S3Server) -> Spans:
    state = make(workload.shapes, Placing.ROWS, filled=True)
    target = {} if workload.load_ranks else make(workload.shapes, Placing.ROWS, filled=False)
    _warm_up(workload, server)
    spans: Spans = {}
    for turn in range(workload.repetitions):
        for one in _in_turn(server, turn):
            path = _path(workload, one, turn)
            _timed(spans, ("save", one.name), lambda one=one, path=path: one.save(state, path))
            if not target:
                continue
            _timed(spans, ("load", one.name), lambda one=one, path=path: one.load(target, path))
            if turn == 0 and not isinstance(one, Plain):
                require_equal(target, state, one.name)
                for tensor in target.values():
                    tensor.zero_()
    return spans


def _warm_up(workload: Workload, server: S3Server) -> None:
    """Load the code that will run, with a state that takes no time."""
    state = make({"a": (8, 4)}, Placing.ROWS, filled=True)
    for one in _contenders(server):
        one.save(state, f"{_path(workload, one, 0)}-warm-{dist.get_world_size()}")
        dist.barrier()
        one.load(state, f"{_path(workload, one, 0)}-warm-{dist.get_world_size()}")


def _load_only(workload: Workload, server: S3Server) -> Spans:
    target = make(workload.shapes, Placing.COLUMNS, filled=False)
    _warm_up(workload, server)
    spans: Spans = {}
    for turn in range(workload.repetitions):
        for one in _in_turn(server, turn):
            path = _path(workload, one, turn)
            _timed(spans, ("load", one.name), lambda one=one, path=path: one.load(target, path))
            if turn == 0 and not isinstance(one, Plain):
                require_equal(target, make(workload.shapes, Placing.COLUMNS, filled=True), one.name)
                for tensor in target.values():
                    tensor.zero_()
    return spans


def _timed(spans: Spans, what: tuple[str, str], act: Any) -> None:
    dist.barrier()
    start, cpu = time.perf_counter(), time.process_time()
    act()
    span = Span(start, time.perf_counter(), time.process_time() - cpu)
    spans.setdefault(what, []).append(span)
    dist.barrier()


def _figures(workload: Workload, by_rank: Sequence[Spans]) -> list[Figures]:
    made: list[Figures] = []
    for act, name in by_rank[0]:
        turns = list(zip(*(spans[act, name] for spans in by_rank), strict=True))
        seconds = [max(s.stop for s in turn) - min(s.start for s in turn) for turn in turns]
        about = workload.name, describe(workload.shapes), act, name
        made.append(Figures(*about, median(seconds), min(seconds)))
    return made


def show(figures: Sequence[Figures], console: Console) -> None:
    table = Table(title="Object store: SeaweedFS on this machine, 4 processes")
    for name in ("workload", "size", "act", "contender"):
        table.add_column(name, no_wrap=True)
    for name in ("median", "fastest", "x ours"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in figures:
        ours = next(
            other
            for other in figures
            if (other.workload, other.act, other.contender) == (one.workload, one.act, "shardkeep")
        )
        table.add_row(
            one.workload,
            one.size,
            one.act,
            one.contender,
            f"{one.seconds:.2f} s",
            f"{one.fastest:.2f} s",
            f"{one.seconds / ours.seconds:.2f}",
        )
    console.print(table)
    console.print(
        "x ours: how many times as long as shardkeep's median. The limit is plain obstore."
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.objects")
    parser.add_argument("--quick", action="store_true", help="256 MiB instead of 1 GiB, once")
    parser.add_argument("--once", action="store_true", help="one repetition instead of three")
    parser.add_argument("words", nargs="*", help="only workloads that have one of these words")
    options = parser.parse_args()
    if reason := cannot_serve():
        raise SystemExit(reason)
    console = Console(width=None if Console().is_terminal else 120)
    figures: list[Figures] = []
    with seaweedfs() as server:
        for workload in workloads(options.quick, options.once):
            if not options.words or any(word in workload.name for word in options.words):
                figures += run(workload, server)
    show(figures, console)
    BUILD.mkdir(parents=True, exist_ok=True)
    made = json.dumps([asdict(one) for one in figures], indent=2)
    (BUILD / "objects.json").write_text(made + "\n")


if __name__ == "__main__":
    main()

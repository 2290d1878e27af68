"""How does one save go, while its caller waits or in the background?"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from shardkeep.errors import InvalidError
from shardkeep.manifest import Json, check_json
from shardkeep.state.keeping import KeptState, keep_state
from shardkeep.state.staging import Snapshot
from shardkeep.storage import Storage, open_storage
from shardkeep.transfer.background import Background, Handle
from shardkeep.transfer.council import Council
from shardkeep.transfer.groups import council_of, heard_by_all
from shardkeep.transfer.hosts import Hosts
from shardkeep.transfer.progress import Meter, Progress
from shardkeep.transfer.replicas import CheckReplicas
from shardkeep.transfer.save import SaveOptions, Timings, run_save
from shardkeep.transfer.snapshots import (
    SnapshotKind,
    check_kind,
    prepare_next_fork,
    take_snapshot,
)
from shardkeep.transfer.threads import thread_count

Path = str | os.PathLike[str] | Storage

# Memory for as many snapshots: one being written, and one more that waits for it.
_SNAPSHOTS = 2
background = Background(_SNAPSHOTS)


@dataclass(frozen=True, slots=True)
class SaveResult:
    """A committed checkpoint, and what it took."""

    path: str
    save_id: str
    nbytes: int
    """Of the files that this rank wrote."""
    total_nbytes: int
    """Of the files of all ranks."""
    seconds: Mapping[str, float]
    """By phase: stage (async only), plan, write, commit."""


def save_now(
    state: Any,
    path: Path,
    *,
    overwrite: bool,
    durable: bool,
    timeout: float,
    check_replicas: CheckReplicas,
    threads: int | None,
    metadata: Mapping[str, Json] | None,
    group: Any,
    progress: Progress | None = None,
    hosts: Hosts | None = None,
    recycled_from: str | None = None,
) -> SaveResult:
    """As `save`; with `hosts`, the path is on a disk that only the ranks of one host see.

    Spare files of the run at `recycled_from` are written again.
    """
    council = council_of(group, act="save", timeout=timeout)
    with Meter("saving", progress, show=council.me == council.chair) as meter:
        with heard_by_all(council, "save (plan)"):
            options = checked_options(overwrite, threads, check_replicas, metadata, meter, hosts)
        return run_here(
            lambda: keep_state(state), path, durable, council, options, Timings(), recycled_from
        )


def begin_save(
    state: Any,
    path: Path,
    *,
    overwrite: bool,
    durable: bool,
    timeout: float,
    check_replicas: CheckReplicas,
    threads: int | None,
    metadata: Mapping[str, Json] | None,
    snapshot: SnapshotKind,
    group: Any,
    progress: Progress | None = None,
    hosts: Hosts | None = None,
    recycled_from: str | None = None,
    after: Callable[[SaveResult], None] = lambda _: None,
) -> Handle[SaveResult]:
    """As `save_async`, and `save_now`; `after` runs in the background after the commit."""
    # First of all: a rank that raises before it would be one act behind the others for ever.
    council, timings = council_of(group, act="save", timeout=timeout), Timings()
    meter = Meter("saving", progress, show=False)
    with heard_by_all(council, "save (stage)"):
        options = checked_options(overwrite, threads, check_replicas, metadata, meter, hosts)
        check_kind(snapshot)
        background.raise_unseen()
        kept, taken = _staged(state, snapshot, timings)
    handle: Handle[SaveResult] = Handle(f"the checkpoint {_name_of(path)}")
    handle.mark_staged()

    def act() -> SaveResult:
        try:
            with taken:
                result = run_here(
                    lambda: kept, path, durable, council, options, timings, recycled_from
                )
        finally:
            # What training has changed meanwhile lies in small pages now.
            prepare_next_fork(kept)
        after(result)
        return result

    background.submit(handle, act)
    return handle


def _staged(state: Any, kind: SnapshotKind, timings: Timings) -> tuple[KeptState, Snapshot]:
    """The state in memory of its own; room for it is reserved."""
    background.reserve()
    try:
        with timings.phase("stage"):
            return take_snapshot(state, kind)
    except BaseException:
        background.give_back()
        raise


def run_here(
    keep: Callable[[], KeptState],
    path: Path,
    durable: bool,
    council: Council,
    options: SaveOptions,
    timings: Timings,
    recycled_from: str | None = None,
) -> SaveResult:
    """Save what `keep` gives; it and the storage are made under the eyes of the council."""
    with ExitStack() as opened:

        def prepare() -> tuple[KeptState, Storage]:
            storage = storage_at(path, create=True, durable=durable, recycled_from=recycled_from)
            return keep(), opened.enter_context(storage)

        outcome = run_save(prepare, council, options, timings)
    return SaveResult(
        outcome.location,
        outcome.save_id,
        outcome.nbytes,
        outcome.total_nbytes,
        dict(outcome.seconds),
    )


@contextmanager
def storage_at(
    path: Path, *, create: bool = False, durable: bool = False, recycled_from: str | None = None
) -> Generator[Storage]:
    """The storage at a path; one that the caller made stays open."""
    storage = open_storage(path, create=create, durable=durable, recycled_from=recycled_from)
    try:
        yield storage
    finally:
        if storage is not path:
            storage.close()


def _name_of(path: Path) -> str:
    return path.location if isinstance(path, Storage) else os.fspath(path)


def checked_options(
    overwrite: bool,
    threads: int | None,
    check_replicas: CheckReplicas,
    metadata: Mapping[str, Json] | None,
    meter: Meter,
    hosts: Hosts | None = None,
) -> SaveOptions:
    """How to save, once all of it makes sense."""
    count = thread_count(threads)
    if check_replicas not in ("sample", "all", "none"):
        raise InvalidError(f"check_replicas is 'sample', 'all' or 'none', got {check_replicas!r}")
    check_json(dict(metadata or {}), "metadata")
    return SaveOptions(overwrite, count, check_replicas, dict(metadata or {}), meter, hosts)

"""How is a state saved and loaded? The whole story, and the doors to it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from shardkeep.errors import InvalidError
from shardkeep.manifest import Json, check_json, register_value
from shardkeep.ranks import RankGroup
from shardkeep.state.fresh_pages import populate
from shardkeep.state.frozen import freezable_spans, frozen_spans
from shardkeep.state.huge_pages import Span, join_pages
from shardkeep.state.keeping import KeptState, keep_state
from shardkeep.state.staging import Snapshot, Stager
from shardkeep.storage import Storage, open_storage
from shardkeep.transfer.background import Background, Handle, stand_back
from shardkeep.transfer.council import Council
from shardkeep.transfer.explain import (
    LoadExplanation,
    SaveExplanation,
    explain_load,
    explain_saving,
)
from shardkeep.transfer.groups import council_of
from shardkeep.transfer.hosts import Hosts
from shardkeep.transfer.lazy import Checkpoint
from shardkeep.transfer.opened import Opened
from shardkeep.transfer.progress import Meter, Progress
from shardkeep.transfer.prune import PruneReport, prune_leftovers
from shardkeep.transfer.replicas import CheckReplicas
from shardkeep.transfer.restore import LoadOptions, LoadReport, OpenSource, build, restore
from shardkeep.transfer.save import SaveOptions, Timings, run_save
from shardkeep.transfer.share import Share, Sharing, check_share, sharing_of
from shardkeep.transfer.threads import thread_count
from shardkeep.translate.opening import open_source

Path = str | os.PathLike[str] | Storage
SnapshotKind = Literal["copy", "fork"]

TIMEOUT = 1800.0
# Memory for as many snapshots: one being written, and one more that waits for it.
_SNAPSHOTS = 2


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


def save(
    state: Any,
    path: Path,
    *,
    overwrite: bool = False,
    durable: bool = True,
    timeout: float = TIMEOUT,
    check_replicas: CheckReplicas = "sample",
    threads: int | None = None,
    metadata: Mapping[str, Json] | None = None,
    group: Any = None,
    progress: Progress | None = None,
) -> SaveResult:
    """Save `state` as a checkpoint at `path`; on return it is complete and will stay.

    SPMD over the ranks of `group` (all by default); a single process needs no group. No collective
    is called. If a rank fails, all raise and the path keeps what it had. A checkpoint that is there
    already is replaced, all at once, with `overwrite=True` only.

    `durable=False` does not wait until the bytes survive a loss of power. No rank waits longer than
    `timeout` seconds for the others. What several ranks hold is compared as `check_replicas` says:
    "sample", "all" or "none". Each rank writes `threads` files at once: two, or one
    where the ranks of a host have a core each. `metadata` is a JSON object of your own. `progress`
    is called with the bytes done and the bytes in all.
    """
    return save_now(
        state,
        path,
        overwrite=overwrite,
        durable=durable,
        timeout=timeout,
        check_replicas=check_replicas,
        threads=threads,
        metadata=metadata,
        group=group,
        progress=progress,
    )


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


def save_async(
    state: Any,
    path: Path,
    *,
    overwrite: bool = False,
    durable: bool = True,
    timeout: float = TIMEOUT,
    check_replicas: CheckReplicas = "sample",
    threads: int | None = None,
    metadata: Mapping[str, Json] | None = None,
    snapshot: SnapshotKind = "copy",
    group: Any = None,
    progress: Progress | None = None,
) -> Handle[SaveResult]:
    """Copy `state` and return; it is saved in the background as by `save`. SPMD.

    The state may be changed as soon as this returns. At most two snapshots are in memory: a third
    call waits. The error of an earlier save that nobody asked for is raised here.

    With `snapshot="fork"`, a forked child keeps what lies in the host's memory as it is now: the
    call returns sooner, and pages are copied only when training changes them while the save goes
    on. Where that is not safe (an accelerator is there, memory is shared), the state is copied.
    """
    return begin_save(
        state,
        path,
        overwrite=overwrite,
        durable=durable,
        timeout=timeout,
        check_replicas=check_replicas,
        threads=threads,
        metadata=metadata,
        snapshot=snapshot,
        group=group,
        progress=progress,
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
        _check_kind(snapshot)
        _background.raise_unseen()
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
            _prepare_fork(frozen_spans(kept.memory))
        after(result)
        return result

    _background.submit(handle, act)
    return handle


def prepare_async(state: Any, *, snapshot: SnapshotKind = "copy") -> None:
    """Have memory ready for a snapshot of `state`, so that its first `save_async` blocks no longer.

    Returns at once; the rest comes in the background, on Linux. Concerns this process alone. Call
    it when the state has its full size: optimizers make theirs in the first step. Later saves are
    prepared by those before them.

    For a copy, it is memory of the same size; for `"fork"`, the state's own memory is put into huge
    pages, of which the kernel has fewer to note.
    """
    _check_kind(snapshot)
    memory = keep_state(state).memory
    if snapshot == "fork":
        _prepare_fork(freezable_spans(memory))
        return
    buffers = _stager.reserve(memory)

    def act() -> None:
        for buffer in buffers:
            populate(buffer)

    _prepare(act)


def _prepare_fork(spans: Sequence[Span]) -> None:
    if spans:
        _prepare(lambda: join_pages(spans))


def _prepare(act: Callable[[], None]) -> None:
    def run() -> None:
        stand_back()
        act()

    # A daemon: nobody waits for it at the interpreter's end.
    threading.Thread(target=run, name="shardkeep-prepare", daemon=True).start()


def _check_kind(snapshot: str) -> None:
    if snapshot not in ("copy", "fork"):
        raise InvalidError(f"snapshot is 'copy' or 'fork', got {snapshot!r}")


_background = Background(_SNAPSHOTS)
_stager = Stager()


@contextmanager
def heard_by_all(council: Council, phase: str) -> Generator[None]:
    """What goes wrong on this rank alone is heard by all, so that nobody waits for it."""
    try:
        yield
    except BaseException as error:
        council.fail(phase, error, undone=True)
        council.leave(done=False)
        raise


def _staged(state: Any, kind: SnapshotKind, timings: Timings) -> tuple[KeptState, Snapshot]:
    """The state in memory of its own, which nobody else changes; its room is reserved."""
    _background.reserve()
    try:
        with timings.phase("stage"):
            kept = keep_state(state)
            take = _stager.freeze if kind == "fork" else _stager.copy
            snapshot = take(kept.memory)
    except BaseException:
        _background.give_back()
        raise
    return replace(kept, memory=snapshot.tree), snapshot


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
            storage = _opened(path, create=True, durable=durable, recycled_from=recycled_from)
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
def _opened(
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


@contextmanager
def source_at(path: Path) -> Generator[Opened]:
    """The checkpoint at a path, as it is now."""
    opened = open_source(path)
    try:
        yield opened
    finally:
        if opened.storage is not path:
            opened.storage.close()


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


def load(
    path: Path,
    into: Any = None,
    *,
    keys: Sequence[str] | None = None,
    strict: bool = True,
    cast: bool = False,
    verify: bool = True,
    threads: int | None = None,
    device: torch.device | str | None = None,
    timeout: float = TIMEOUT,
    group: Any = None,
    share: Share = "auto",
    progress: Progress | None = None,
) -> Any:
    """Fill `into` in place from a checkpoint and return a LoadReport; SPMD over `group`.

    `into` is a tree of tensors of any kind and layout, modules and other objects with state dicts;
    each rank reads the boxes that it holds. Without it, the state itself is returned, whole, in
    plain containers and tensors, and no other rank takes part. `keys` are glob patterns of dotted
    paths. Every byte is checked against its digest unless `verify=False`.

    `strict=False` reports keys that only one side has, where else they are an error. `cast=True`
    converts to the state's dtypes. Tensors on the meta device get memory on `device`.

    `share="job"` has every byte read once and passed on to all ranks that want it, "host" once on
    each host; "auto" does so in the job for stores that are not file systems, if ranks by
    themselves would read more than a few bytes twice, and among ranks that can share memory for
    files, if by themselves they would read much that they do not want.
    """
    check_share(share)
    if into is None:
        with Meter("loading", progress, show=True) as meter:
            count = thread_count(threads)
            options = LoadOptions(keys, strict, cast, verify, count, _device(device), meter)
            return build(lambda: source_at(path), RankGroup.of(group).me, options)

    def make_sharing(council: Council, opened: Opened) -> Sharing | None:
        return sharing_of(share, opened.storage, council, group, timeout=timeout)

    return load_from(
        lambda: source_at(path),
        into,
        make_sharing,
        keys=keys,
        strict=strict,
        cast=cast,
        verify=verify,
        threads=threads,
        device=device,
        timeout=timeout,
        group=group,
        progress=progress,
    )


def load_from(
    open_source: OpenSource,
    into: Any,
    make_sharing: Callable[[Council, Opened], Sharing | None],
    *,
    keys: Sequence[str] | None = None,
    strict: bool,
    cast: bool,
    verify: bool,
    threads: int | None,
    device: torch.device | str | None,
    timeout: float,
    group: Any,
    progress: Progress | None = None,
) -> LoadReport:
    """As `load` with `into`, from wherever `open_source` says; ranks may share what they read."""
    council = council_of(group, act="load", timeout=timeout)
    with Meter("loading", progress, show=council.me == council.chair) as meter:
        with heard_by_all(council, "load"):
            count = thread_count(threads)
            options = LoadOptions(keys, strict, cast, verify, count, _device(device), meter)
        return restore(
            open_source, into, council, options, lambda opened: make_sharing(council, opened)
        )


def _device(device: torch.device | str | None) -> torch.device | None:
    return torch.device(device) if device is not None else None


def open(path: Path, *, threads: int | None = None) -> Checkpoint:
    """A checkpoint to look into: keys, shapes, slices, verification. Reads only what is asked."""
    count = thread_count(threads)
    opened = open_source(path)
    return Checkpoint(opened, threads=count, owns_storage=opened.storage is not path)


def explain(
    path: Path, into: Any, *, keys: Sequence[str] | None = None, threads: int | None = None
) -> LoadExplanation:
    """What loading the checkpoint into `into` would do on this rank; reads no tensor data."""
    with source_at(path) as opened:
        return explain_load(opened, into, RankGroup.of().me, keys, thread_count(threads))


def explain_save(
    state: Any, *, threads: int | None = None, timeout: float = TIMEOUT, group: Any = None
) -> SaveExplanation:
    """What saving `state` would write, rank by rank; raises the conflicts a save would. SPMD."""
    council = council_of(group, act="explain", timeout=timeout)
    with heard_by_all(council, "explain"):
        kept, count = keep_state(state), thread_count(threads)
    return explain_saving(kept, council, count)


def prune(path: Path, *, dry_run: bool = False) -> PruneReport:
    """Remove what saves that were broken off left at `path`; the checkpoint itself stays.

    What belongs to a save that is under way stays, too, whichever job it is of.
    """
    with _opened(path, durable=True) as storage:
        return prune_leftovers(storage, dry_run=dry_run)


def register_value_type(
    name: str, kind: type[Any], encode: Callable[[Any], Json], decode: Callable[[Any], Any]
) -> None:
    """Teach a further type of value to be kept, under a name that stays the same for ever.

    `encode` turns a value into JSON, `decode` turns that back. Both sides must know the type.
    """
    register_value(name, kind, encode, decode)

"""How is a state saved and loaded? The whole story, and the doors to it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from shardkeep.manifest import Json, register_value
from shardkeep.ranks import RankGroup
from shardkeep.state.keeping import keep_state
from shardkeep.transfer.background import Handle
from shardkeep.transfer.council import Council
from shardkeep.transfer.explain import (
    LoadExplanation,
    SaveExplanation,
    explain_load,
    explain_saving,
)
from shardkeep.transfer.groups import council_of, heard_by_all
from shardkeep.transfer.lazy import Checkpoint
from shardkeep.transfer.opened import Opened
from shardkeep.transfer.progress import Meter, Progress
from shardkeep.transfer.prune import PruneReport, prune_leftovers
from shardkeep.transfer.replicas import CheckReplicas
from shardkeep.transfer.restore import LoadOptions, LoadReport, OpenSource, build, restore
from shardkeep.transfer.saving import Path, SaveResult, begin_save, save_now, storage_at
from shardkeep.transfer.share import Share, Sharing, check_share, sharing_of
from shardkeep.transfer.snapshots import SnapshotKind, prepare_snapshot
from shardkeep.transfer.threads import thread_count
from shardkeep.translate.opening import open_source

TIMEOUT = 1800.0


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


def prepare_async(state: Any, *, snapshot: SnapshotKind = "copy") -> None:
    """Have memory ready for a snapshot of `state`, so that its first `save_async` blocks no longer.

    Returns at once; the rest comes in the background, on Linux. Concerns this process alone. Call
    it when the state has its full size: optimizers make theirs in the first step. Later saves are
    prepared by those before them.

    For a copy, it is memory of the same size; for `"fork"`, the state's own memory is put into huge
    pages, of which the kernel has fewer to note.
    """
    prepare_snapshot(state, snapshot)


@contextmanager
def source_at(path: Path) -> Generator[Opened]:
    """The checkpoint at a path, as it is now."""
    opened = open_source(path)
    try:
        yield opened
    finally:
        if opened.storage is not path:
            opened.storage.close()


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
    with storage_at(path, durable=True) as storage:
        return prune_leftovers(storage, dry_run=dry_run)


def register_value_type(
    name: str, kind: type[Any], encode: Callable[[Any], Json], decode: Callable[[Any], Any]
) -> None:
    """Teach a further type of value to be kept, under a name that stays the same for ever.

    `encode` turns a value into JSON, `decode` turns that back. Both sides must know the type.
    """
    register_value(name, kind, encode, decode)

"""When does a checkpoint exist? When its manifest is in its place, and every file was seen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext

from shardkeep.errors import (
    ConflictError,
    NotFoundError,
    ShardkeepError,
    StorageError,
    name_ranks,
)
from shardkeep.manifest import MANIFEST_NAME as MANIFEST, FileRecord, file_name, lock_name
from shardkeep.manifest.limits import MAX_MANIFEST_NBYTES
from shardkeep.manifest.summary import decode_summary
from shardkeep.storage import CanHold, Storage


def committed_manifest(storage: Storage) -> bytes | None:
    """The bytes of the manifest that is there now; None if there is none."""
    try:
        return storage.get(MANIFEST, max_nbytes=MAX_MANIFEST_NBYTES)
    except NotFoundError:
        return None


def committed_nbytes(storage: Storage, save_id: str) -> int | None:
    """The bytes of the data files if it is this save that was committed, else None."""
    data = committed_manifest(storage)
    if data is None:
        return None
    found = decode_summary(data, where=f"{storage.location}/{MANIFEST}")
    return sum(found.files.nbytes) if found.save_id == save_id else None


def under_way(storage: Storage, save_id: str) -> AbstractContextManager[None]:
    """While it is open, prune leaves the files of this save alone."""
    return storage.hold(lock_name(save_id)) if isinstance(storage, CanHold) else nullcontext()


def require_visible(
    storage: Storage,
    save_id: str,
    records: Iterable[FileRecord],
    hosts: Mapping[int, str],
    me: int,
) -> None:
    """Every file is seen from here with its full size, else the ranks do not share the storage."""
    sizes = {entry.key: entry.nbytes for entry in storage.list()}
    unseen: dict[int, str] = {}
    for record in records:
        name = file_name(save_id, record.rank, record.number)
        if sizes.get(name) != record.nbytes:
            unseen[record.rank] = name
    if not unseen:
        return
    first, name = next(iter(unseen.items()))
    elsewhere = sorted({hosts[rank] for rank in unseen} - {hosts[me]})
    raise StorageError(
        f"rank {me} on host {hosts[me]} does not see what {name_ranks(sorted(unseen))} wrote "
        f"(rank {first}: {name}"
        + (f", on {', '.join(elsewhere[:4])}" if elsewhere else "")
        + "). A checkpoint needs storage that all ranks share: save to a shared file system or an "
        "object store; node-local disks serve as the local tier, Checkpointer(root, local=folder)"
    )


def commit(storage: Storage, manifest: bytes, replaced: bytes | None) -> None:
    """Put the manifest in place of the one that was seen, or where none was."""
    if replaced is None:
        done = storage.put_if_absent(MANIFEST, manifest)
    else:
        done = storage.replace(MANIFEST, manifest, expected=replaced)
    if not done:
        raise ConflictError(
            "another save to the same path was committed while this one was running; "
            "that one stands, nothing of this one was kept"
        )


def remove_files(storage: Storage, names: Iterable[str]) -> None:
    """Remove files that no manifest names any more; what cannot be removed is left for prune."""
    for name in names:
        try:
            storage.delete(name, missing_ok=True)
        except (OSError, ShardkeepError):
            continue

"""What did broken-off saves leave behind, and may it go?

A save holds a file of its own, its lock, from before its first data file until its end. So what is
seen of a save whose lock is not held belongs to one that is over. If it was committed, the manifest
that is read after that names its files; if the manifest does not, nothing ever will.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardkeep.manifest import (
    decode_manifest,
    parse_file_name,
    parse_lock_name,
    parse_report_name,
    report_name,
)
from shardkeep.storage import CanHold, Entry, Storage
from shardkeep.storage.protocols import CanFindUploads, Upload
from shardkeep.transfer.commit import MANIFEST, committed_manifest


@dataclass(frozen=True, slots=True)
class PruneReport:
    """Files that no committed checkpoint needs."""

    names: tuple[str, ...]
    nbytes: int
    uploads: tuple[str, ...] = ()
    """Files whose upload to an object store was begun and never finished."""


def prune_leftovers(storage: Storage, *, dry_run: bool) -> PruneReport:
    """Remove data files that the manifest does not name, and temporary ones.

    What belongs to a save that is under way stays. Foreign files are left alone. A manifest that
    cannot be read keeps every file: CorruptError.
    """
    # The order is the point: names, then who is at work, then what was committed by then.
    entries = storage.list()
    uploads = storage.unfinished() if isinstance(storage, CanFindUploads) else ()
    working = saves_under_way(storage)
    kept = _names_in_use(storage)
    found = [one for one in entries if one.key not in kept and _is_left_over(one, working)]
    begun = [one for one in uploads if _save_of(one.key) and _save_of(one.key) not in working]
    if not dry_run:
        found = _remove(storage, found)
        _abort(storage, begun)
    names, nbytes = tuple(one.key for one in found), sum(one.nbytes for one in found)
    return PruneReport(names, nbytes, tuple(one.key for one in begun))


def saves_under_way(storage: Storage) -> set[str]:
    """The save ids of those who are at work here now."""
    if not isinstance(storage, CanHold):
        return set()
    locks = [one.key for one in storage.list() if parse_lock_name(one.key) is not None]
    return {_save_of(key) for key in locks if storage.is_held(key)}


def _names_in_use(storage: Storage) -> set[str]:
    data = committed_manifest(storage)
    if data is None:
        return set()
    manifest = decode_manifest(data, where=f"{storage.location}/{MANIFEST}")
    names = {manifest.file_name(index) for index in range(len(manifest.files))}
    return {*names, report_name(manifest.save_id)}


def _is_left_over(entry: Entry, working: set[str]) -> bool:
    if entry.is_temporary:
        # A manifest on its way to its name, of whichever save.
        return not working
    save_id = _save_of(entry.key)
    return bool(save_id) and save_id not in working


def _remove(storage: Storage, found: Sequence[Entry]) -> list[Entry]:
    """Remove what may go; what went.

    Locks come first: once a save's lock is taken away it cannot be committed any more, even if it
    was only stopped for a while. Then its files may go.
    """
    locks = [one for one in found if parse_lock_name(one.key) is not None]
    spared = {_save_of(one.key) for one in locks if not _remove_lock(storage, one.key)}
    going = [one for one in found if _save_of(one.key) not in spared]
    for one in going:
        storage.delete(one.key, missing_ok=True)
    return going


def _abort(storage: Storage, uploads: Sequence[Upload]) -> None:
    for upload in uploads:
        if isinstance(storage, CanFindUploads):
            storage.abort_unfinished(upload)


def _remove_lock(storage: Storage, key: str) -> bool:
    return storage.delete_unless_held(key) if isinstance(storage, CanHold) else True


def _save_of(name: str) -> str:
    """The save that a file belongs to; empty for one that is not ours."""
    file = parse_file_name(name)
    return file.save_id if file else parse_report_name(name) or parse_lock_name(name) or ""

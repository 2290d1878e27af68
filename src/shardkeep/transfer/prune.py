"""What did broken-off saves leave behind, and may it go?

A save holds a file of its own, its lock, from before its first data file until its end. So what is
seen of a save whose lock is not held belongs to one that is over. If it was committed, the manifest
that is read after that names its files; if the manifest does not, nothing ever will.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardkeep.manifest import (
    decode_manifest,
    parse_file_name,
    parse_lock_name,
    parse_report_name,
    report_name,
)
from shardkeep.storage import CanHold, Entry, Storage
from shardkeep.transfer.commit import MANIFEST, committed_manifest


@dataclass(frozen=True, slots=True)
class PruneReport:
    """Files that no committed checkpoint needs."""

    names: tuple[str, ...]
    nbytes: int


def prune_leftovers(storage: Storage, *, dry_run: bool) -> PruneReport:
    """Remove data files that the manifest does not name, and temporary ones.

    What belongs to a save that is under way stays. Foreign files are left alone. A manifest that
    cannot be read keeps every file: CorruptError.
    """
    # The order is the point: names, then who is at work, then what was committed by then.
    entries = storage.list()
    working = saves_under_way(storage)
    kept = _names_in_use(storage)
    found = [one for one in entries if one.key not in kept and _is_left_over(one, working)]
    if not dry_run:
        found = [one for one in found if _remove(storage, one.key)]
    return PruneReport(tuple(one.key for one in found), sum(one.nbytes for one in found))


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


def _remove(storage: Storage, key: str) -> bool:
    if isinstance(storage, CanHold) and parse_lock_name(key) is not None:
        return storage.delete_unless_held(key)
    storage.delete(key, missing_ok=True)
    return True


def _save_of(name: str) -> str:
    """The save that a file belongs to; empty for one that is not ours."""
    file = parse_file_name(name)
    return file.save_id if file else parse_report_name(name) or parse_lock_name(name) or ""

"""What did broken-off saves leave behind, and may it go?"""

from __future__ import annotations

from dataclasses import dataclass

from shardkeep.manifest import (
    decode_manifest,
    parse_file_name,
    parse_report_name,
    report_name,
)
from shardkeep.storage import Storage
from shardkeep.transfer.commit import MANIFEST, committed_manifest


@dataclass(frozen=True, slots=True)
class PruneReport:
    """Files that no committed checkpoint needs."""

    names: tuple[str, ...]
    nbytes: int


def prune_leftovers(storage: Storage, *, dry_run: bool) -> PruneReport:
    """Remove data files that the manifest does not name, and temporary ones.

    Foreign files are left alone. A manifest that cannot be read keeps every file: CorruptError.
    """
    data = committed_manifest(storage)
    kept = set[str]()
    if data is not None:
        manifest = decode_manifest(data, where=f"{storage.location}/{MANIFEST}")
        kept = {manifest.file_name(index) for index in range(len(manifest.files))}
        kept.add(report_name(manifest.save_id))
    found = [
        entry
        for entry in storage.list()
        if entry.is_temporary or (_is_ours(entry.key) and entry.key not in kept)
    ]
    for entry in found if not dry_run else ():
        storage.delete(entry.key, missing_ok=True)
    names = tuple(entry.key for entry in found)
    return PruneReport(names, sum(entry.nbytes for entry in found))


def _is_ours(name: str) -> bool:
    return parse_file_name(name) is not None or parse_report_name(name) is not None

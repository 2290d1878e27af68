"""Which steps can be restored from what the hosts have on their disks, and where is each file?

Each host tells which files it has; whoever commits put the manifest on every host, so that any of
them knows what belongs to a step. A step is whole when every file of it is somewhere: on a host
that takes part, or in the slow tier.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from shardkeep.errors import NotFoundError, ShardkeepError, name_ranks
from shardkeep.manifest import MANIFEST_NAME, decode_summary, parse_file_name
from shardkeep.manifest.limits import MAX_MANIFEST_NBYTES
from shardkeep.storage.shelf import LocalShelf
from shardkeep.transfer.steps import StepRecord, parse_step, record_of, step_name

Save = tuple[int, str]
"""A step and a save id: a step that was saved again has another."""
HeldFile = tuple[int, int, int]
"""The rank that wrote a file, its number and its size."""


class HeldSave(msgspec.Struct, array_like=True):
    """What a host has of one save."""

    step: int
    save_id: str
    has_manifest: bool
    files: list[HeldFile]


def held_saves(shelf: LocalShelf) -> list[HeldSave]:
    """What is on a host's disk."""
    steps = [(parse_step(name), name) for name in shelf.names()]
    return [one for step, name in steps if step is not None for one in _held_in(shelf, step, name)]


def _held_in(shelf: LocalShelf, step: int, name: str) -> list[HeldSave]:
    saves: dict[str, HeldSave] = {}
    try:
        with shelf.open(name) as storage:
            for entry in storage.list():
                file = parse_file_name(entry.key)
                if file is not None:
                    one = saves.setdefault(file.save_id, HeldSave(step, file.save_id, False, []))
                    one.files.append((file.rank, file.number, entry.nbytes))
    except NotFoundError:
        return []
    manifest = local_manifest(shelf, step)
    if manifest is not None:
        save_id = decode_summary(manifest, where=MANIFEST_NAME).save_id
        saves.setdefault(save_id, HeldSave(step, save_id, False, [])).has_manifest = True
    return list(saves.values())


def local_manifest(shelf: LocalShelf, step: int, save_id: str | None = None) -> bytes | None:
    """The manifest of a step on this host; None if there is none that can be read."""
    try:
        with shelf.open(step_name(step)) as storage:
            data = storage.get(MANIFEST_NAME, max_nbytes=MAX_MANIFEST_NBYTES)
            found = decode_summary(data, where=MANIFEST_NAME).save_id
    except ShardkeepError:
        return None
    return data if save_id in (None, found) else None


class Located(msgspec.Struct, array_like=True):
    """Where the files of a save are."""

    step: int
    save_id: str
    in_slow: bool
    hosts_with: list[list[int]]
    """The hosts that have each file, by the file's index; empty if none has any."""


@dataclass(slots=True)
class Inventory:
    """What all hosts have, put together."""

    holders: dict[Save, dict[HeldFile, list[int]]] = field(
        default_factory=dict[Save, dict[HeldFile, list[int]]]
    )
    manifests: dict[Save, list[int]] = field(default_factory=dict[Save, list[int]])
    """The hosts that have the manifest of each save."""

    def add(self, host: int, held: Sequence[HeldSave]) -> None:
        """What one host has."""
        for one in held:
            save = one.step, one.save_id
            for file in one.files:
                self.holders.setdefault(save, {}).setdefault(file, []).append(host)
            if one.has_manifest:
                self.manifests.setdefault(save, []).append(host)


def locate(
    inventory: Inventory,
    manifests: Mapping[Save, bytes],
    slow: Sequence[StepRecord],
) -> tuple[list[StepRecord], dict[int, Located], list[str]]:
    """All steps of the run, where those are that can be restored, and what cannot be, and why.

    Of a step that was saved twice, the later save counts.
    """
    records = {one.step: one for one in slow}
    located = {
        one.step: Located(one.step, one.save_id, True, [])
        for one in slow
        if one.condition == "committed"
    }
    lost: list[str] = []
    for (step, save_id), data in sorted(manifests.items()):
        there = records.get(step)
        is_there = there is not None and there.save_id == save_id
        in_slow = is_there and there is not None and there.condition == "committed"
        summary = decode_summary(data, where=MANIFEST_NAME)
        held = inventory.holders.get((step, save_id), {})
        where = [held.get((f.rank, f.number, f.nbytes), []) for f in summary.files]
        missing = sorted(
            {f.rank for f, hosts in zip(summary.files, where, strict=True) if not hosts}
        )
        record = record_of(step, step_name(step), summary, "")
        if missing and not in_slow:
            if not is_there:
                lost.append(
                    f"step {step} was saved to the local tier only, and what {name_ranks(missing)} "
                    "wrote is on no host that takes part"
                )
        elif is_there or there is None or record.saved_at >= there.saved_at:
            records[step] = record
            located[step] = Located(step, save_id, in_slow, where if any(where) else [])
    return [records[step] for step in sorted(records)], located, lost

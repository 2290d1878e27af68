"""How does a run stay tidy? Committed checkpoints go by rule, everything else only when told."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from shardkeep.errors import NotFoundError
from shardkeep.plan.retention import Retention
from shardkeep.storage.shelf import Shelf
from shardkeep.transfer.prune import saves_under_way
from shardkeep.transfer.steps import StepRecord, current, read_steps


class RunPrune(msgspec.Struct, frozen=True):
    """What was removed of a run, or would be."""

    steps: tuple[int, ...] = ()
    """Committed checkpoints that no rule keeps."""
    leftovers: tuple[int, ...] = ()
    """Half-written ones."""
    damaged: tuple[int, ...] = ()
    nbytes: int = 0
    """Of the committed ones."""
    spare_nbytes: int = 0
    """Of files that were kept to be written again."""


def prune_run(
    shelf: Shelf,
    retention: Retention,
    *,
    spared: frozenset[int] = frozenset(),
    just_saved: int | None = None,
    leftover_seconds: float,
    damaged: bool,
    dry_run: bool,
    spares: bool = True,
    now: Callable[[], float] = time.time,
) -> RunPrune:
    """Remove what may go. `spared` steps are neither removed nor counted, `just_saved` counts.

    Half-written ones go when nothing in them has changed for `leftover_seconds` and no save to
    them is under way. The newest committed checkpoint always stays. Spare files go unless
    `spares` is false.
    """
    found = read_steps(shelf)
    records = [one for one in found if one.step not in spared]
    # What a run left behind as it went back must not push out what it has saved since.
    counted = [one for one in current(found) if one.step not in spared]
    committed = {one.step: one for one in counted if one.condition == "committed"}
    steps = retention.dropped([one.as_saved for one in committed.values()])
    dropped = [step for step in steps if step != just_saved]
    stale = [
        one
        for one in records
        if one.condition == "half-written"
        and now() - shelf.changed_at(one.name) >= leftover_seconds
        and not _is_being_saved(shelf, one.name)
    ]
    broken = [one for one in records if one.condition == "damaged"] if damaged else []
    going: list[StepRecord] = [*(committed[step] for step in dropped), *stale, *broken]
    spare_nbytes = shelf.spare_nbytes() if spares else 0
    if not dry_run:
        if spares:
            shelf.discard_spares()
        shelf.sweep()
        for record in going:
            shelf.remove(record.name)
    return RunPrune(
        tuple(dropped),
        tuple(one.step for one in stale),
        tuple(one.step for one in broken),
        sum(committed[step].nbytes for step in dropped),
        spare_nbytes,
    )


def _is_being_saved(shelf: Shelf, name: str) -> bool:
    try:
        with shelf.open(name) as storage:
            return bool(saves_under_way(storage))
    except NotFoundError:
        return False

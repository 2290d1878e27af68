"""What goes when a run is pruned, and how does a checkpoint get elsewhere?"""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path

from shardkeep.errors import InvalidError, UnsupportedError
from shardkeep.manifest import MANIFEST_NAME
from shardkeep.plan.retention import Retention
from shardkeep.storage import open_storage
from shardkeep.transfer.copy_files import copy_checkpoint
from shardkeep.transfer.progress import Meter
from shardkeep.transfer.retain import RunPrune, prune_run
from shardkeep.transfer.threads import core_count
from shardkeep.view.listing import shelf_of, steps_of
from shardkeep.view.opening import opened_checkpoint
from shardkeep.view.places import Place, place_of


def prune_steps(
    run: Place, rule: Retention, *, leftovers: bool, damaged: bool, dry_run: bool
) -> RunPrune:
    """Remove what no rule keeps, or say what would go."""
    steps_of(run)
    if rule == Retention() and not leftovers and not damaged:
        raise InvalidError("say what to keep, such as --keep-last 3; nothing was removed")
    age = 0.0 if leftovers else math.inf
    shelf = shelf_of(place_of(run))
    return prune_run(shelf, rule, leftover_seconds=age, damaged=damaged, dry_run=dry_run)


def copy_to(source: Place, target: Place) -> int:
    """Copy a checkpoint, checked; the number of bytes."""
    source, target = place_of(source), place_of(target)
    with opened_checkpoint(source):
        pass
    if isinstance(source, Path) and not (source / MANIFEST_NAME).exists():
        raise UnsupportedError(
            f"{source} is of another format, which has no digests to check a copy with; "
            f"`shardkeep import {source} {target}` makes a checkpoint of it"
        )
    was_there = isinstance(target, str) or target.exists()
    try:
        with (
            open_storage(source, create=False, durable=False) as here,
            open_storage(target, create=True, durable=True) as there,
            Meter("copying", None, show=True) as meter,
        ):
            return copy_checkpoint(here, there, threads=core_count(), meter=meter)
    except BaseException:
        if isinstance(target, Path) and not was_there:
            with suppress(OSError):
                target.rmdir()
        raise

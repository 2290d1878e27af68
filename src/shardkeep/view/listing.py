"""Which checkpoints has a run? Nothing is imported here that a quick answer does not need."""

from __future__ import annotations

from pathlib import Path

from shardkeep.errors import InvalidError, NotFoundError
from shardkeep.manifest import MANIFEST_NAME
from shardkeep.storage.shelf import LocalShelf
from shardkeep.transfer.steps import StepRecord, read_steps


def steps_of(run: Path) -> list[StepRecord]:
    """The checkpoints of a run, by step."""
    if not run.is_dir():
        raise NotFoundError(f"{run} is not there, or is no folder")
    records = read_steps(LocalShelf(run))
    if not records and (run / MANIFEST_NAME).exists():
        raise InvalidError(f"{run} is one checkpoint, not a run: try `shardkeep show {run}`")
    if not records:
        raise NotFoundError(f"{run} holds no checkpoints: no folder is called step-<number>")
    return records

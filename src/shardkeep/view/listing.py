"""Which checkpoints has a run? Nothing is imported here that a quick answer does not need."""

from __future__ import annotations

from pathlib import Path

from shardkeep.errors import InvalidError, NotFoundError
from shardkeep.manifest import MANIFEST_NAME
from shardkeep.storage.shelf import LocalShelf, Shelf
from shardkeep.transfer.steps import StepRecord, read_steps
from shardkeep.view.places import Place, place_of


def steps_of(run: Place) -> list[StepRecord]:
    """The checkpoints of a run, by step."""
    place = place_of(run)
    if isinstance(place, Path) and not place.is_dir():
        raise NotFoundError(f"{run} is not there, or is no folder")
    records = read_steps(shelf_of(place))
    if not records and _is_checkpoint(place):
        raise InvalidError(f"{place} is one checkpoint, not a run: try `shardkeep show {place}`")
    if not records:
        raise NotFoundError(f"{place} holds no checkpoints: no folder is called step-<number>")
    return records


def shelf_of(place: Place) -> Shelf:
    """Where a run's checkpoints stand."""
    if isinstance(place, Path):
        return LocalShelf(place)
    from shardkeep.storage.shelves import open_shelf

    return open_shelf(place)


def _is_checkpoint(place: Place) -> bool:
    if isinstance(place, Path):
        return (place / MANIFEST_NAME).exists()
    from shardkeep.view.opening import is_checkpoint

    return is_checkpoint(place)

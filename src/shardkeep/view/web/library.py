"""What was opened, and what may be looked at? Nothing but that: names from outside are looked up.

A place is a run or a checkpoint that somebody named on the command line. `0` is the first of
them, `0/step-00000100` a checkpoint of the first, if that is a run.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from shardkeep.errors import InvalidError, NotFoundError
from shardkeep.storage.shelf import Shelf
from shardkeep.transfer.opened import Opened
from shardkeep.transfer.steps import parse_step
from shardkeep.view.listing import shelf_of
from shardkeep.view.opening import is_checkpoint
from shardkeep.view.places import Place as Where, place_of
from shardkeep.view.web.kept_open import KeptOpen

_AT = re.compile(r"(\d{1,4})(?:/([a-z0-9-]{1,40}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Place:
    """A run or a checkpoint that was named."""

    id: str
    path: Where
    kind: Literal["run", "checkpoint"]

    @property
    def name(self) -> str:
        return Path(self.path).name or str(self.path)


class Library:
    """The places that were named; checkpoints stay open while somebody looks at them."""

    def __init__(self, paths: Sequence[Where]) -> None:
        if not paths:
            raise InvalidError("name a run or a checkpoint to look at")
        self._open = KeptOpen()
        self._shelves: dict[str, Shelf] = {}
        self.places = [self._place(str(at), path) for at, path in enumerate(paths)]

    def _place(self, id: str, path: Where) -> Place:
        where = place_of(path)
        whole = where.rstrip("/") if isinstance(where, str) else _found(where)
        if not is_checkpoint(whole):
            place = Place(id, whole, "run")
            if isinstance(whole, str):
                self._require_run(place)
            return place
        # Else a mistake would show only in the browser.
        with self._open.lease(whole):
            return Place(id, whole, "checkpoint")

    def _require_run(self, place: Place) -> None:
        """A store has no folders: one that is empty and a slip of the pen look the same."""
        if not any(parse_step(name) is not None for name in self.shelf(place).names()):
            raise NotFoundError(
                f"{place.path} holds no checkpoint, and none that is called step-<number> below "
                "it; check the address"
            )

    def shelf(self, run: Place) -> Shelf:
        """Where the run's checkpoints stand."""
        if run.id not in self._shelves:
            self._shelves[run.id] = shelf_of(run.path)
        return self._shelves[run.id]

    def place(self, id: str) -> Place:
        """The place of this number."""
        found = next((one for one in self.places if one.id == id), None)
        if found is None:
            raise NotFoundError(f"nothing was opened under {id!r}; start from the first page")
        return found

    def run(self, id: str) -> Place:
        """The run of this number."""
        place = self.place(id)
        if place.kind != "run":
            raise InvalidError(f"{place.name} is one checkpoint, not a run")
        return place

    def path_of(self, at: str) -> Where:
        """Where a checkpoint is; no text from outside becomes part of a path unchecked."""
        found = _AT.fullmatch(at)
        if found is None:
            raise InvalidError(f"{at[:80]!r} names no checkpoint")
        place, name = self.place(found[1]), found[2]
        if place.kind == "checkpoint" and name is None:
            return place.path
        if place.kind == "run" and name is not None and parse_step(name) is not None:
            shelf = self.shelf(place)
            if name in shelf.names():
                return shelf.path(name)
        raise NotFoundError(
            f"{place.name} has no checkpoint {name or ''}; it may have been removed since"
        )

    @contextmanager
    def checkpoint(self, at: str) -> Generator[Opened]:
        """A checkpoint, open; it stays so for a while."""
        with self._open.lease(self.path_of(at)) as opened:
            yield opened

    def close(self) -> None:
        """Let go of all files."""
        self._open.close()


def _found(path: Path) -> Path:
    if not path.exists():
        raise NotFoundError(f"{path} is not there; check the path")
    return path.resolve()

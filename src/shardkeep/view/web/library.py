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

from shardkeep.errors import InvalidError, NotFoundError, UnsupportedError
from shardkeep.storage.shelf import LocalShelf
from shardkeep.transfer.opened import Opened
from shardkeep.transfer.steps import parse_step
from shardkeep.translate.opening import format_of
from shardkeep.view.places import place_of
from shardkeep.view.web.kept_open import KeptOpen

_AT = re.compile(r"(\d{1,4})(?:/([a-z0-9-]{1,40}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Place:
    """A run or a checkpoint that was named."""

    id: str
    path: Path
    kind: Literal["run", "checkpoint"]

    @property
    def name(self) -> str:
        return self.path.name or str(self.path)


class Library:
    """The places that were named; checkpoints stay open while somebody looks at them."""

    def __init__(self, paths: Sequence[Path]) -> None:
        if not paths:
            raise InvalidError("name a run or a checkpoint to look at")
        self._open = KeptOpen()
        self.places = [self._place(str(at), path) for at, path in enumerate(paths)]

    def _place(self, id: str, path: Path) -> Place:
        url = place_of(path)
        if isinstance(url, str):
            raise UnsupportedError(
                f"{url}: the viewer opens local paths only; `shardkeep copy {url} DEST` brings a "
                "checkpoint here, and ls, show, diff and explain take URLs"
            )
        if not path.exists():
            raise NotFoundError(f"{path} is not there; check the path")
        whole = path.resolve()
        if path.is_dir() and format_of(path) is None:
            return Place(id, whole, "run")
        # Else a mistake would show only in the browser.
        with self._open.lease(whole):
            return Place(id, whole, "checkpoint")

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

    def path_of(self, at: str) -> Path:
        """The folder of a checkpoint; no text from outside becomes part of a path unchecked."""
        found = _AT.fullmatch(at)
        if found is None:
            raise InvalidError(f"{at[:80]!r} names no checkpoint")
        place, name = self.place(found[1]), found[2]
        if place.kind == "checkpoint" and name is None:
            return place.path
        if place.kind == "run" and name is not None and parse_step(name) is not None:
            shelf = LocalShelf(place.path)
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

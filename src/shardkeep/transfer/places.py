"""Where do a run's checkpoints lie: in its folder alone, or on the hosts' own disks before that?"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shardkeep.plan.retention import Best
from shardkeep.storage import Storage, open_storage
from shardkeep.storage.shelf import Shelf
from shardkeep.transfer.choose import Wish, agree_on_step
from shardkeep.transfer.groups import council_of
from shardkeep.transfer.steps import read_steps, step_name
from shardkeep.transfer.tiered_choice import Found
from shardkeep.transfer.tiers import Tiers


class Places:
    """A run's folder or URL; with `tiers`, the hosts' own disks come before it."""

    def __init__(self, shelf: Shelf, *, durable: bool, group: Any, timeout: float) -> None:
        self._shelf = shelf
        self.tiers: Tiers | None = None
        self._durable = durable
        self._group = group
        self._timeout = timeout

    def keep_on_hosts(
        self,
        root: str | os.PathLike[str],
        *,
        keep: int,
        peer_copies: bool,
        threads: int,
        recycle: bool,
    ) -> None:
        """From now on, what is saved comes to this folder on each host's own disk first. SPMD."""
        self.tiers = Tiers(
            root,
            self._opened,
            keep=keep,
            peer_copies=peer_copies,
            group=self._group,
            durable=self._durable,
            timeout=self._timeout,
            threads=threads,
            recycle=recycle,
        )

    @property
    def path(self) -> Path | str:
        """The run's folder, or its URL in an object store."""
        location = self._shelf.location
        return location if "://" in location else Path(location)

    def path_of(self, step: int) -> Path | str:
        """The folder or URL of a step's checkpoint, whether it is there or not."""
        return self._shelf.path(step_name(step))

    def place_of(self, step: int) -> Path | Storage:
        """The same with the connections and options of the run."""
        return self._shelf.place(step_name(step))

    @contextmanager
    def _opened(self, step: int, create: bool) -> Generator[Storage]:
        """The storage of a step in the run's folder."""
        place, spares = self.place_of(step), self._shelf.recycled_from
        with open_storage(
            place, create=create, durable=self._durable, recycled_from=spares
        ) as storage:
            yield storage

    def require_new(self, step: int) -> None:
        """ConflictError if this run has saved the step already, as far as the hosts' disks know."""
        if self.tiers is not None:
            self.tiers.require_new(step)

    def arguments(self, step: int) -> dict[str, Any]:
        """Where a save of the step goes first, as `save_now` takes it."""
        return {
            "path": self.tiers.path_of(step) if self.tiers else self.place_of(step),
            "hosts": self.tiers.hosts if self.tiers else None,
            "recycled_from": (self.tiers or self._shelf).recycled_from,
        }

    def saved(self, step: int, save_id: str, *, overwrite: bool, after: Callable[[], None]) -> None:
        """A step was committed; `after` runs when it is in the run's folder."""
        if self.tiers is None:
            after()
        else:
            self.tiers.saved(step, save_id, overwrite=overwrite, after=after)

    def choose(self, wish: Wish, best: Best | None) -> Found:
        """Which step to load, and what the hosts have of it. SPMD."""
        if self.tiers is not None:
            return self.tiers.choose(lambda: read_steps(self._shelf), wish, best)
        council = council_of(self._group, act="choose", timeout=self._timeout)
        choice = agree_on_step(council, self._shelf, wish, best)
        return Found(choice, located=None, manifest=None, bad_count=0)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is on its way to the run's folder from the hosts' disks."""
        return self.tiers is None or self.tiers.is_idle

    def wait(self) -> None:
        """Return when the newest step is in the run's folder; raises if it could not be brought."""
        if self.tiers is not None:
            self.tiers.wait()

    def discard_spares(self, *, is_chair: bool) -> None:
        """Free the space of spare files."""
        if is_chair and self._shelf.recycled_from is not None:
            self._shelf.discard_spares()
        if self.tiers is not None:
            self.tiers.discard_spares()

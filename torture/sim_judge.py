"""What must hold in every simulated world, at each moment and at the end?

- A manifest in its place names files that are complete, of the right content, and that stay there.
- A save that returned on any rank is committed, with that process's own files.
- Who says that nothing was committed is right, for ever.
- Every wait ends in time, and soon after somebody has failed.
- An error names ranks and a phase, and blames nobody to whom nothing has happened.
- Without overwrite, one save at most is committed to a path.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from shardkeep.errors import ConflictError, DeadlineError, RankFailedError, StorageError
from shardkeep.manifest import decode_manifest, file_name, header_digest
from shardkeep.transfer.commit import MANIFEST
from shardkeep.transfer.save import SaveOutcome
from torture.sim_disk import Disk, File
from torture.sim_processes import Hub, Process
from torture.sim_store import SimStore

SPARE_SECONDS = 2.0
_SOON_SECONDS = 0.5
_LATE = re.compile(r"^(plan|views|agree|write|explain|explained): ranks? ([\d\-, ]+?) (?:of|has) ")


@dataclass
class Attempt:
    """What the ranks of a council try to save together."""

    name: str
    store: SimStore
    diverged: bool
    """Its replicas differ: it must not be committed."""
    processes: Mapping[int, Sequence[Process]]
    """By rank; a restarted one has two."""
    before: Attempt | None
    """Of the same ranks."""
    save_ids: list[str] = field(default_factory=list[str])
    undone: str = ""
    """Who said that nothing was committed."""
    failed_at: float | None = None
    failed: set[int] = field(default_factory=set[int])
    """Ranks that gave up."""

    def is_innocent(self, rank: int, timeout: float) -> bool:
        """Whether nothing has happened to any process of this rank that could make it late."""
        processes = self.processes[rank]
        return not any(one.afflicted or one.slow_seconds > timeout / 2 for one in processes)

    @cached_property
    def is_mixed(self) -> bool:
        """Whether a process was started anew, into what its first life had a part in."""
        return any(len(ones) > 1 for ones in self.processes.values())

    @property
    def begins_together(self) -> bool:
        """Whether the ranks come to it at about the same time: not after a failure on some."""
        return self.before is None or (not self.before.failed and self.before.begins_together)


@dataclass(frozen=True)
class Commit:
    """A manifest that came to its place."""

    attempt: Attempt | None
    owners: dict[str, Process | None]
    """Who wrote the files that it names."""


class Judge:
    """Looks on, and writes down what is wrong."""

    def __init__(self, hub: Hub, *, timeout: float, overwrites: bool) -> None:
        self.violations: list[str] = []
        self.commits: dict[str, Commit] = {}
        self.returned = 0
        self._hub = hub
        self._timeout = timeout
        self._overwrites = overwrites
        self._by_save_id: dict[str, Attempt] = {}
        self._in_place: dict[Disk, set[str]] = {}

    def complain(self, what: str) -> None:
        self._hub.say("judge", f"VIOLATION {what}")
        self.violations.append(what)

    # Attempts

    def named(self, attempt: Attempt, save_id: str) -> None:
        """The chair has chosen a save id."""
        attempt.save_ids.append(save_id)
        self._by_save_id[save_id] = attempt

    def failure_noted(self, attempt: Attempt, note: bytes) -> None:
        """The note of a failure came into the Store."""
        said = json.loads(note)
        if attempt.failed_at is None:
            attempt.failed_at = self._hub.now
        if said["undone"]:
            self.said_undone(attempt, f"rank {said['rank']}'s note")

    def said_undone(self, attempt: Attempt, who: str) -> None:
        """Somebody relies on it that nothing is or will be committed."""
        attempt.undone = attempt.undone or who
        if any(save_id in self.commits for save_id in attempt.save_ids):
            self.complain(f"{attempt.name} is committed, but {who} says that nothing was")

    # The folder

    def changed(self, disk: Disk, name: str, before: File | None, after: File | None) -> None:
        """A name of a folder has come to mean something else."""
        if name == MANIFEST:
            self._committed(disk, after)
        elif before is not None and name in self._in_place.get(disk, ()):
            self.complain(f"{name} is gone, and the manifest names it")

    def _committed(self, disk: Disk, file: File | None) -> None:
        if file is None:
            self.complain("the manifest is gone")
            return
        manifest = decode_manifest(bytes(file.data), where=MANIFEST)
        owners: dict[str, Process | None] = {}
        for record in manifest.files:
            name = file_name(manifest.save_id, record.rank, record.number)
            found = disk.files.get(name)
            if found is None or not found.is_complete or len(found.data) != record.nbytes:
                self.complain(f"a manifest came to its place that names {name}, not complete")
            elif header_digest(bytes(found.data[: record.header_nbytes])) != record.header_digest:
                self.complain(f"a manifest came to its place that names another {name}")
            else:
                owners[name] = found.owner
        self._in_place[disk] = set(owners)
        self._judge_commit(manifest.save_id, owners)

    def _judge_commit(self, save_id: str, owners: dict[str, Process | None]) -> None:
        attempt = self._by_save_id.get(save_id)
        self.commits[save_id] = Commit(attempt, owners)
        if attempt is None:
            return
        if attempt.undone:
            self.complain(f"{attempt.name} is committed, after {attempt.undone} said otherwise")
        if attempt.diverged:
            self.complain(f"{attempt.name} is committed, though its replicas differ")
        if len(self.commits) > 1 and not self._overwrites:
            self.complain(f"{attempt.name} is committed over another, without overwrite")

    # Ranks

    def waited(
        self, process: Process, attempt: Attempt, what: str, start: float, stalled: float
    ) -> None:
        """A wait of a rank is over; it began then, when the rank had stalled for so long."""
        own = process.stalled_seconds - stalled
        seconds = self._hub.now - start - own
        bound = self._timeout + min(0.5 * self._timeout, 1.0) + SPARE_SECONDS
        if seconds > bound:
            self.complain(f"{process} waited {seconds:.2f} s to {what}; the bound is {bound:g} s")
        failed_at = attempt.failed_at
        if failed_at is None or attempt.store.is_lossy or attempt.is_mixed:
            return
        seconds = self._hub.now - max(start, failed_at) - own
        if seconds > _SOON_SECONDS:
            self.complain(f"{process} went on to {what} for {seconds:.2f} s after a failure")

    def ended(self, process: Process, since: float, stalled: float) -> None:
        """A rank has told the others that it gives up, and is through with it."""
        seconds = self._hub.now - since - (process.stalled_seconds - stalled)
        if seconds > SPARE_SECONDS:
            self.complain(f"{process} took {seconds:.2f} s to give up")

    def succeeded(self, process: Process, attempt: Attempt, outcome: SaveOutcome) -> None:
        """A rank's save has returned."""
        self.returned += 1
        commit = self.commits.get(outcome.save_id)
        if commit is None:
            self.complain(f"{process} returned from {attempt.name}, which is not committed")
            return
        for record in outcome.files:
            name = file_name(outcome.save_id, record.rank, record.number)
            if commit.owners.get(name) is not process:
                self.complain(f"{process} returned from {attempt.name}, without {name} of its own")

    def failed(self, process: Process, rank: int, attempt: Attempt, error: BaseException) -> None:
        """A rank's save has raised."""
        text = str(error)
        if "nothing was committed" in text or "nothing of this one was kept" in text:
            self.said_undone(attempt, f"{process}'s error")
        if isinstance(error, RankFailedError):
            self._judge_failure(process, rank, attempt, error)
        elif isinstance(error, DeadlineError):
            self._judge_lateness(process, attempt, text)
        elif not isinstance(error, StorageError | ConflictError | KeyboardInterrupt):
            self.complain(f"{process} raised {type(error).__name__}: {text}")

    def _judge_failure(
        self, process: Process, rank: int, attempt: Attempt, error: RankFailedError
    ) -> None:
        if not error.failures or not error.phase:
            self.complain(f"{process}'s error names no rank or phase: {error}")
        for blamed in error.failures if not attempt.is_mixed else ():
            if blamed != rank and blamed not in attempt.failed:
                self.complain(f"{process} blames rank {blamed}, which has not failed: {error}")
            if blamed == rank and not attempt.store.is_lossy and attempt.store.host is None:
                self.complain(f"{process} blames a Store that answers: {error}")

    def _judge_lateness(self, process: Process, attempt: Attempt, text: str) -> None:
        found = _LATE.search(text)
        if found is None:
            self.complain(f"{process}'s error names no rank or phase: {text}")
            return
        if attempt.is_mixed or attempt.store.is_lossy or not attempt.begins_together:
            return
        blamed = [rank for run in found[2].split(", ") for rank in _ranks(run)]
        innocent = [rank for rank in blamed if attempt.is_innocent(rank, self._timeout)]
        if innocent:
            self.complain(f"{process} blames {innocent}, to whom nothing has happened: {text}")

    def closed(self, processes: Sequence[Process], store: SimStore) -> None:
        """The world is over."""
        for process in processes:
            if process.alive and not process.ended:
                self.complain(f"{process} never ends")
        names = {process.name[1:] for process in processes}
        whole = all(p.alive and not p.interrupted for p in processes)
        if whole and len(names) == len(processes) and not store.is_lossy and store.notes:
            left = ", ".join(sorted(store.notes)[:3])
            self.complain(f"{len(store.notes)} notes are left in the Store: {left}")


def _ranks(run: str) -> Sequence[int]:
    first, _, last = run.partition("-")
    return range(int(first), int(last or first) + 1)

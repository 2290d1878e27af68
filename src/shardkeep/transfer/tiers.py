"""How is a run kept on the hosts' own disks first, and in the slow tier afterwards?

A save is committed when every host has its files. In the background the files go to the next host,
if peers are to keep copies, and to the slow tier. A restore reads the nearest good copy of each
file: on this host, on another one, in the slow tier.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

from shardkeep.errors import ConflictError, CorruptError, InvalidError, NotFoundError
from shardkeep.manifest import decode_manifest
from shardkeep.plan.retention import Best
from shardkeep.plan.sharing import Reach
from shardkeep.storage import LocalStorage, Storage
from shardkeep.storage.shelf import LocalShelf
from shardkeep.transfer.background import Background, Handle
from shardkeep.transfer.choose import Wish
from shardkeep.transfer.council import Council
from shardkeep.transfer.groups import council_of, from_chair
from shardkeep.transfer.hosts import meet_hosts
from shardkeep.transfer.inventory import Located, local_manifest
from shardkeep.transfer.nearest import Nearest
from shardkeep.transfer.open_manifest import Headers
from shardkeep.transfer.opened import Opened
from shardkeep.transfer.peers import copy_to_peers
from shardkeep.transfer.share import Sharing
from shardkeep.transfer.steps import StepRecord, parse_step, step_name
from shardkeep.transfer.tiered_choice import BadCopy, Found, TieredChoice
from shardkeep.transfer.upload import Upload
from shardkeep.transfer.wire import Wire, wire_of

_log = logging.getLogger("shardkeep")

OpenSlow = Callable[[int, bool], AbstractContextManager[Storage]]
"""The slow tier's storage of a step, made if the second argument is true."""
_MAX_WAITING = 1024
_ATTEMPTS = 3
_POLL_SECONDS = 0.01
_MANIFEST_SECONDS = 60.0


class Tiers:
    """The local tier of a run, beside a slow one. SPMD over the ranks of `group`."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        open_slow: OpenSlow,
        *,
        keep: int,
        peer_copies: bool,
        group: Any,
        durable: bool,
        timeout: float,
        threads: int,
        recycle: bool,
    ) -> None:
        if keep < 1:
            raise InvalidError(f"keep_local must be at least 1, got {keep}")
        self._open_slow = open_slow
        self._keep = keep
        self._group = group
        self._durable = durable
        self._timeout = timeout
        self._threads = threads
        self.hosts = meet_hosts(council_of(group, act="hosts", timeout=timeout), root)
        self._shelf = LocalShelf(root, recycle=recycle)
        self._wire = self._peer_wire() if peer_copies else None
        self._background = Background(_MAX_WAITING)
        self._uploads: list[Handle[None]] = []
        self._saved: set[int] = set()
        self._newest = ""
        """The id of the last save that was committed."""
        self._busy: int | None = None
        """The step that is being uploaded."""
        self._bad: list[BadCopy] = []
        self._known_bad = 0

    def _peer_wire(self) -> Wire | None:
        """Made now, not in the background: groups are made in the same order on all ranks."""
        if self.hosts.count < 2 or wire_of(self._group, timeout=self._timeout) is None:
            return None
        wire = Wire(self._group, timeout=self._timeout)
        wire.connect()
        return wire

    def path_of(self, step: int) -> Path:
        """The folder of a step on this host."""
        return self._shelf.path(step_name(step))

    @property
    def recycled_from(self) -> str | None:
        """Where spare files are on this host; None if none are kept."""
        return self._shelf.recycled_from

    def discard_spares(self) -> None:
        """Free the space of spare files, on the first rank of this host."""
        if self.hosts.leads and self.recycled_from is not None:
            self._shelf.discard_spares()

    # After a save

    def require_new(self, step: int) -> None:
        """ConflictError if this run has saved the step already."""
        if step in self._saved:
            raise ConflictError(
                f"step {step} was saved by this run already; pass overwrite=True to replace it"
            )

    def saved(self, step: int, save_id: str, *, overwrite: bool, after: Callable[[], None]) -> None:
        """A step was committed on the hosts: have it go further. `after` runs when it is there."""
        self._saved.add(step)
        self._newest = save_id
        self._tidy(step)

        def spread() -> None:
            manifest = self._wait_for_manifest(step, save_id)
            with LocalStorage(self.path_of(step), durable=self._durable) as local:
                self._copy_to_peers(local, manifest, save_id)
                self._upload(step, local, manifest, save_id, overwrite)
            after()

        self._submit(step, save_id, spread)

    def resume(self, located: Located, manifest: bytes, after: Callable[[], None]) -> None:
        """A step was restored that the slow tier does not have: a job ended before it was there."""
        self._newest = located.save_id

        def upload() -> None:
            with LocalStorage(self.path_of(located.step), create=True) as local:
                self._upload(located.step, local, manifest, located.save_id, overwrite=True)
            after()

        self._submit(located.step, located.save_id, upload)

    def _submit(self, step: int, save_id: str, act: Callable[[], None]) -> None:
        handle: Handle[None] = Handle(f"step {step} in the slow tier")
        self._uploads = [*(one for one in self._uploads if not one.done()), handle]
        self._background.reserve()
        self._background.submit(handle, lambda: self._run(step, save_id, act))

    def _run(self, step: int, save_id: str, act: Callable[[], None]) -> None:
        """Unless a newer step waits: then this one need not be brought there any more."""
        self._busy = step
        try:
            council = self._council("spread", save_id)
            if from_chair(council, "spread", lambda: save_id == self._newest, bool):
                act()
        except Exception as error:
            _log.warning("step %d was not brought to the slow tier: %s", step, error)
            raise
        finally:
            self._busy = None
            # It may have been spared only because it was on its way.
            self._tidy(max(self._saved, default=step))

    def _wait_for_manifest(self, step: int, save_id: str) -> bytes:
        """The first rank of this host may be just about to put it there."""
        deadline = time.monotonic() + min(self._timeout, _MANIFEST_SECONDS)
        while (found := local_manifest(self._shelf, step, save_id)) is None:
            if time.monotonic() > deadline:
                raise NotFoundError(
                    f"{self.path_of(step)} has no manifest of {save_id}: it could not be put there"
                )
            time.sleep(_POLL_SECONDS)
        return found

    def _copy_to_peers(self, local: Storage, manifest: bytes, save_id: str) -> None:
        if self._wire is None:
            return
        try:
            copy_to_peers(
                self._council("peers", save_id),
                self._wire,
                self.hosts,
                local,
                manifest,
                threads=self._threads,
                timeout=self._timeout,
            )
        except Exception as error:
            # All ranks fail together; its group cannot be made anew in the background.
            self._wire = None
            _log.warning("peers keep no copies any more: %s", error)

    def _upload(
        self, step: int, local: Storage, manifest: bytes, save_id: str, overwrite: bool
    ) -> None:
        """Bring it there; a file that is damaged on one host is taken from another that has it."""
        for attempt in range(_ATTEMPTS):
            bad = {one.name for one in self._bad if one.step == step and not one.in_slow}
            upload = Upload(
                self._council("upload", f"{save_id}/{attempt}"),
                self.hosts,
                local,
                lambda: self._open_slow(step, True),
                manifest,
                bad=bad,
                overwrite=overwrite,
                threads=self._threads,
            )
            try:
                upload.run()
                return
            except CorruptError:
                # All ranks raise; the one that found it knows the file now.
                self._bad += [BadCopy(step, name, False) for name in sorted(bad)]
                if attempt == _ATTEMPTS - 1:
                    raise

    def _council(self, act: str, topic: str) -> Council:
        return council_of(self._group, act=act, timeout=self._timeout, topic=topic)

    def _tidy(self, step: int) -> None:
        """Remove what is older than the newest steps on this host, on its first rank."""
        if not self.hosts.leads:
            return
        try:
            steps = sorted(n for name in self._shelf.names() if (n := parse_step(name)) is not None)
            old = [n for n in steps if n <= step][: -self._keep]
            self._shelf.sweep()
            for number in old:
                if number != self._busy:
                    self._shelf.remove(step_name(number))
        except Exception as error:
            _log.warning("old steps in %s were not removed: %s", self._shelf.location, error)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is on its way to the slow tier."""
        return all(handle.done() for handle in self._uploads)

    def wait(self) -> None:
        """Return when the newest step is in the slow tier; raises if it could not be brought."""
        handles, self._uploads = self._uploads, []
        errors = [(handle.wait(), handle.unseen_error())[1] for handle in handles]
        if errors and errors[-1] is not None:
            raise errors[-1]

    # Restoring

    def choose(
        self, read_slow: Callable[[], Sequence[StepRecord]], wish: Wish, best: Best | None
    ) -> Found:
        """Which step to load, and where its files are."""
        council = council_of(self._group, act="choose", timeout=self._timeout)
        choice = TieredChoice(council, self.hosts, self._shelf, read_slow)
        found = choice.run(wish, best, self._bad, self._known_bad)
        self._known_bad = found.bad_count
        return found

    @contextmanager
    def open_found(self, located: Located, manifest: bytes) -> Generator[Opened]:
        """A step some of whose files are on hosts, as this rank reaches it."""
        with ExitStack() as opened:
            storages: list[Storage] = []
            folder = self.path_of(located.step)
            if folder.is_dir():
                storages.append(opened.enter_context(LocalStorage(folder)))
            if located.in_slow:
                storages.append(opened.enter_context(self._open_slow(located.step, False)))
            nearest = Nearest(storages)
            listed = decode_manifest(manifest, where=f"{nearest.location}/manifest.json")
            try:
                yield Opened(nearest, listed, Headers(nearest, listed), lambda: listed.save_id)
            finally:
                self._remember(nearest, located.step, str(folder))

    def _remember(self, nearest: Nearest, step: int, folder: str) -> None:
        for location, name in sorted(nearest.bad):
            copy = BadCopy(step, name, in_slow=location != folder)
            if copy not in self._bad:
                self._bad.append(copy)
                _log.warning("%s/%s is damaged: another copy is used", location, name)

    def sharing(self, located: Located, council: Council) -> Sharing | None:
        """How the ranks hand each other what only some can reach; None if all reach all."""
        wire = wire_of(self._group, timeout=self._timeout)
        if wire is None or self.hosts.count == 1:
            return None
        near = {
            index: tuple(rank for host in hosts for rank in self.hosts.ranks_on(host))
            for index, hosts in enumerate(located.hosts_with)
            if hosts
        }
        reach = Reach(near, far=located.in_slow)
        return Sharing(council, wire, "job", timeout=self._timeout, reach=reach)

"""How does a checkpoint get from the disks of the hosts to storage that all share?

Each file is uploaded by a rank whose host has it, every block checked on its way. The manifest
comes last, from the chair, when all files were seen: an upload that is broken off is none, and the
next one begins anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress

import msgspec

from shardkeep.errors import ConflictError, ShardkeepError
from shardkeep.manifest import (
    Manifest,
    decode_manifest,
    decode_summary,
    lock_name,
    parse_file_name,
)
from shardkeep.plan.uploads import plan_uploads
from shardkeep.storage import CanHold, Storage
from shardkeep.transfer.commit import (
    MANIFEST,
    commit,
    committed_manifest,
    remove_files,
    require_visible,
    under_way,
)
from shardkeep.transfer.copy_files import copy_files
from shardkeep.transfer.council import Council
from shardkeep.transfer.hosts import Hosts
from shardkeep.transfer.open_manifest import Headers
from shardkeep.transfer.progress import Meter

_Held = tuple[list[int], list[str]]
"""Indices of files that a host has, on its first rank; names of those that a rank found bad."""
OpenStorage = Callable[[], AbstractContextManager[Storage]]


class Upload:
    """One rank's part in the upload of one checkpoint."""

    def __init__(
        self,
        council: Council,
        hosts: Hosts,
        local: Storage,
        open_slow: OpenStorage,
        manifest: bytes,
        *,
        bad: set[str],
        overwrite: bool,
        threads: int,
    ) -> None:
        self._council = council
        self._hosts = hosts
        self._local = local
        self._open_slow = open_slow
        self._data = manifest
        self._bad = bad
        """Names of files that this rank found damaged on its host; more may be added."""
        self._overwrite = overwrite
        self._threads = threads
        self._is_chair = council.me == council.chair
        self._open = ExitStack()

    def run(self) -> None:
        """Return when the checkpoint is in the slow tier; if that fails, all ranks raise."""
        try:
            with self._open:
                self._run()
        except BaseException as error:
            self._council.fail("upload", error, undone=False)
            self._council.leave(done=False)
            raise
        self._council.leave(done=True)

    def _run(self) -> None:
        self._manifest = decode_manifest(self._data, where=MANIFEST)
        held = held_files(self._local, self._manifest) if self._hosts.leads else []
        self._council.report("upload", msgspec.msgpack.encode((held, sorted(self._bad))))
        if self._is_chair:
            self._council.announce("upload", msgspec.msgpack.encode(self._shares()))
        shares = msgspec.msgpack.decode(self._council.hear("upload"), type=dict[int, list[int]])
        if not shares:
            # It was there already.
            return
        self._copy(shares[self._council.me])
        self._council.report("uploaded", b"")
        if self._is_chair:
            self._council.collect("uploaded")
            self._commit()
            self._council.announce("uploaded", b"")
        self._council.hear("uploaded")

    def _shares(self) -> dict[int, list[int]]:
        """The files that each rank uploads; none at all if the checkpoint is there already."""
        notes = self._council.collect("upload")
        self._slow = self._open.enter_context(self._open_slow())
        self._replaced = committed_manifest(self._slow)
        if self._replaced is not None:
            if _save_id(self._replaced) == self._manifest.save_id:
                return {}
            if not self._overwrite:
                raise ConflictError(
                    f"{self._slow.location} holds a checkpoint of another save already; save "
                    "another step, or pass overwrite=True to replace it"
                )
        self._hold()
        # Of an upload that was broken off: nobody can tell whether they are whole.
        remove_files(self._slow, self._names())
        said = {r: msgspec.msgpack.decode(note, type=_Held) for r, note in notes.items()}
        hosts = set(self._hosts.number_of.values())
        ranks_on = {host: self._hosts.ranks_on(host) for host in hosts}
        hosts_with: list[list[int]] = [[] for _ in self._manifest.files]
        for host, ranks in ranks_on.items():
            bad = {name for rank in ranks for name in said[rank][1]}
            for index in (index for rank in ranks for index in said[rank][0]):
                if self._manifest.file_name(index) not in bad:
                    hosts_with[index].append(host)
        return plan_uploads(list(self._manifest.files.nbytes), hosts_with, ranks_on)

    def _hold(self) -> None:
        """As a save does; the lock of a job that died in an upload of the same save goes first."""
        save_id = self._manifest.save_id
        if isinstance(self._slow, CanHold) and not self._slow.delete_unless_held(
            lock_name(save_id)
        ):
            raise ConflictError(f"another job uploads {save_id} to {self._slow.location} now")
        self._open.enter_context(under_way(self._slow, save_id))

    def _names(self) -> list[str]:
        return [self._manifest.file_name(index) for index in range(len(self._manifest.files))]

    def _copy(self, indices: Sequence[int]) -> None:
        with self._open_slow() as slow:
            meter = Meter("uploading", None, show=False)
            headers = Headers(self._local, self._manifest)
            copy_files(headers, indices, self._local, slow, self._threads, meter, bad=self._bad)
            slow.sync()

    def _commit(self) -> None:
        files, me = list(self._manifest.files), self._council.me
        names = {rank: self._hosts.names.get(rank, "?") for rank in {me, *(f.rank for f in files)}}
        require_visible(self._slow, self._manifest.save_id, files, names, me)
        commit(self._slow, self._data, self._replaced)
        if self._replaced is not None:
            with suppress(ShardkeepError):
                old = decode_summary(self._replaced, where=MANIFEST)
                remove_files(self._slow, [old.file_name(at) for at in range(len(old.files))])


def held_files(storage: Storage, manifest: Manifest) -> list[int]:
    """The files of a checkpoint that a storage has, by index; their bytes are not looked at."""
    sizes = {one.key: one.nbytes for one in storage.list() if parse_file_name(one.key)}
    return [
        index
        for index, nbytes in enumerate(manifest.files.nbytes)
        if sizes.get(manifest.file_name(index)) == nbytes
    ]


def _save_id(manifest: bytes) -> str:
    try:
        return decode_summary(manifest, where=MANIFEST).save_id
    except ShardkeepError:
        return ""

"""How does each host come to keep a copy of another host's files?

In a ring: what the ranks of one host wrote goes to the next host's disk, too. The ranks of that
host want whole files, which only the first host can reach: they get them as in a load.
"""

from __future__ import annotations

import numpy as np

from shardkeep.manifest import Manifest, decode_manifest
from shardkeep.plan.sharing import Reach, Window, windows_of
from shardkeep.storage import Storage
from shardkeep.storage.protocols import Sink
from shardkeep.storage.rooms import empty_room
from shardkeep.transfer.commit import MANIFEST
from shardkeep.transfer.council import Council
from shardkeep.transfer.hosts import Hosts
from shardkeep.transfer.open_manifest import Headers
from shardkeep.transfer.progress import Meter
from shardkeep.transfer.pump import IN_FLIGHT_NBYTES
from shardkeep.transfer.read import Array, Reader
from shardkeep.transfer.share import Sharing
from shardkeep.transfer.shared_fill import STRIPE_NBYTES
from shardkeep.transfer.wire import Wire


def copy_to_peers(
    council: Council,
    wire: Wire,
    hosts: Hosts,
    local: Storage,
    manifest: bytes,
    *,
    threads: int,
    timeout: float,
) -> int:
    """Keep the files of the host before mine on this one, too; the bytes that came. SPMD."""
    try:
        listed = decode_manifest(manifest, where=MANIFEST)
        sharing = Sharing(council, wire, "job", timeout=timeout, reach=_reach(listed, hosts))
        sharing.begin(listed.save_id)
        with _Copies(listed, local) as copies:
            windows = copies.windows(_wanted(listed, hosts))
            sharing.exchange(windows, copies, threads=threads, more=False)
        council.report("load", b"")
        if council.me == council.chair:
            council.collect("load")
            council.announce("load", b"")
        council.hear("load")
    except BaseException as error:
        council.fail("peer copies", error, undone=True)
        council.leave(done=False)
        raise
    council.leave(done=True)
    return sharing.nbytes_received


def _reach(manifest: Manifest, hosts: Hosts) -> Reach:
    """Each file is at hand on the host whose rank wrote it, and nowhere else."""
    near = {
        index: hosts.ranks_on(hosts.number_of[file.rank])
        for index, file in enumerate(manifest.files)
    }
    return Reach(near, far=False)


def _wanted(manifest: Manifest, hosts: Hosts) -> list[int]:
    """The files that this rank takes for its host: an equal part of those of the host before."""
    before = (hosts.mine - 1) % hosts.count
    theirs = [
        index
        for index, file in enumerate(manifest.files)
        if hosts.number_of[file.rank] == before and before != hosts.mine
    ]
    ranks = hosts.ranks_on(hosts.mine)
    return theirs[ranks.index(hosts.me) :: len(ranks)]


class _Copies:
    """Files of others on their way to a storage. Use it in `with`: finished, or not there."""

    in_flight_nbytes = IN_FLIGHT_NBYTES
    brings_memory = False

    def __init__(self, manifest: Manifest, storage: Storage) -> None:
        self._manifest = manifest
        self._storage = storage
        self._headers = Headers(storage, manifest)
        self._reader = Reader(
            storage, threads=1, verify=True, meter=Meter("copying", None, show=False)
        )
        self._sinks: dict[int, Sink] = {}

    def windows(self, indices: list[int]) -> list[Window]:
        """Whole files; a place for each is made."""
        found: list[Window] = []
        for index in indices:
            record = self._manifest.files[index]
            name = self._manifest.file_name(index)
            self._storage.delete(name, missing_ok=True)
            self._sinks[index] = self._storage.create(name)
            start = record.header_nbytes
            found.append(Window(index, -1, 0, start))
            found += windows_of(
                index, [(start, record.nbytes)], origin=start, stripe_nbytes=STRIPE_NBYTES
            )
        return found

    def read(self, window: Window, memory: Array | None) -> Array:
        """A part of a file that this host has, checked."""
        room = empty_room(window.nbytes) if memory is None else memory
        if window.start < self._manifest.files[window.file].header_nbytes:
            room[:] = np.frombuffer(self._headers.read_both(window.file)[1], np.uint8)
        else:
            file = self._headers.open_file(window.file)
            self._reader.read_blocks(file, window.start, room)
        return room

    def take(self, window: Window, data: Array) -> None:
        """A part of a file of another host."""
        self._sinks[window.file].write(window.start, [data.data])

    def stands_alone(self, window: Window) -> bool:
        """Never: nobody reads what he wants himself."""
        return False

    def read_alone(self, window: Window) -> None:
        raise AssertionError("nobody reads what he wants himself")

    def __enter__(self) -> _Copies:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        for sink in self._sinks.values():
            if error is None:
                sink.finish()
            else:
                sink.abort()
        if error is None:
            self._storage.sync()

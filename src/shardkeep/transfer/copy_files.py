"""How does a checkpoint get to another storage, with every byte checked on its way?"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from shardkeep.errors import ConflictError, CorruptError, ShardkeepError
from shardkeep.manifest import decode_manifest
from shardkeep.manifest.limits import MAX_MANIFEST_NBYTES
from shardkeep.storage import Storage
from shardkeep.transfer.commit import MANIFEST, committed_manifest, under_way
from shardkeep.transfer.open_manifest import Headers, ReadStorage
from shardkeep.transfer.progress import Meter
from shardkeep.transfer.read import require_blocks

_STEP_NBYTES = 4 * 2**20


def copy_checkpoint(source: Storage, target: Storage, *, threads: int, meter: Meter) -> int:
    """Copy a committed checkpoint; the number of bytes of its data files.

    The manifest comes last, so that a copy that is broken off is none.
    """
    if committed_manifest(target) is not None:
        raise ConflictError(f"{target.location} holds a checkpoint already; copy to another path")
    data = source.get(MANIFEST, max_nbytes=MAX_MANIFEST_NBYTES)
    manifest = decode_manifest(data, where=f"{source.location}/{MANIFEST}")
    headers = Headers(source, manifest)
    total = sum(manifest.files.nbytes)
    meter.expect(total)
    with under_way(target, manifest.save_id):
        copy_files(headers, range(len(manifest.files)), source, target, threads, meter)
        target.sync()
        if not target.put_if_absent(MANIFEST, data):
            raise ConflictError(f"another checkpoint has appeared at {target.location} meanwhile")
    return total


def copy_files(
    headers: Headers,
    indices: Iterable[int],
    source: ReadStorage,
    target: Storage,
    threads: int,
    meter: Meter,
    *,
    bad: set[str] | None = None,
) -> None:
    """Copy these files of a checkpoint, every block checked, or none of them.

    The names of those that are damaged are added to `bad`.
    """
    copying = _Copying(source, target, headers, meter)
    try:
        copying.run(indices, threads)
    finally:
        if bad is not None:
            bad |= copying.bad


class _Copying:
    def __init__(
        self, source: ReadStorage, target: Storage, headers: Headers, meter: Meter
    ) -> None:
        self._source = source
        self._target = target
        self._headers = headers
        self._meter = meter
        self._stop = threading.Event()
        self._done: list[str] = []
        self.bad: set[str] = set()

    def run(self, indices: Iterable[int], threads: int) -> None:
        """Copy these files, or none of them."""
        pool = ThreadPoolExecutor(threads, "shardkeep-copy")
        try:
            for act in [pool.submit(self._copy_file, index) for index in indices]:
                act.result()
        except BaseException:
            # Also on Ctrl-C: what is under way ends at once, and what was written does not stay.
            self._stop.set()
            pool.shutdown(cancel_futures=True)
            with suppress(ShardkeepError):
                for name in self._done:
                    self._target.delete(name, missing_ok=True)
            raise
        pool.shutdown()

    def _copy_file(self, index: int) -> None:
        try:
            self._copy_checked(index)
        except CorruptError:
            self.bad.add(self._headers.name(index))
            raise

    def _copy_checked(self, index: int) -> None:
        # Its header was checked against the manifest when it was read.
        file = self._headers.open_file(index)
        with self._target.create(file.name) as sink:
            sink.write(0, [self._source.read(file.name, 0, file.data_start)])
            step = max(file.block_nbytes, _STEP_NBYTES - _STEP_NBYTES % file.block_nbytes)
            for start in range(file.data_start, file.nbytes, step):
                if self._stop.is_set():
                    raise ConflictError("the copy was broken off")
                piece = self._source.read(file.name, start, min(step, file.nbytes - start))
                require_blocks(file, self._headers[index].digests, start, [memoryview(piece)])
                sink.write(start, [piece])
                self._meter.add(len(piece))
        self._done.append(file.name)

"""How does a checkpoint get to another storage, with every byte checked on its way?"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from shardkeep.errors import ConflictError
from shardkeep.manifest import decode_manifest
from shardkeep.manifest.limits import MAX_MANIFEST_NBYTES
from shardkeep.storage import Storage
from shardkeep.transfer.commit import MANIFEST, committed_manifest
from shardkeep.transfer.open_manifest import Headers
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
    with ThreadPoolExecutor(threads, "shardkeep-copy") as pool:
        acts = [
            pool.submit(_copy_file, source, target, headers, index, meter)
            for index in range(len(manifest.files))
        ]
        for act in acts:
            act.result()
    target.sync()
    if not target.put_if_absent(MANIFEST, data):
        raise ConflictError(f"another checkpoint has appeared at {target.location} meanwhile")
    return total


def _copy_file(
    source: Storage, target: Storage, headers: Headers, index: int, meter: Meter
) -> None:
    # Its header was checked against the manifest when it was read.
    file = headers.open_file(index)
    with target.create(file.name) as sink:
        sink.write(0, [source.read(file.name, 0, file.data_start)])
        step = max(file.block_nbytes, _STEP_NBYTES - _STEP_NBYTES % file.block_nbytes)
        for start in range(file.data_start, file.nbytes, step):
            piece = source.read(file.name, start, min(step, file.nbytes - start))
            require_blocks(file, headers[index].digests, start, memoryview(piece))
            sink.write(start, [piece])
            meter.add(len(piece))

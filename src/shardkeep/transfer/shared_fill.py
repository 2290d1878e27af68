"""How do ranks that share their reads fill memory, and learn of the files that others read?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np

from shardkeep.plan.sharing import Window, windows_of
from shardkeep.transfer.assembly import Assembly
from shardkeep.transfer.collecting import gc_paused
from shardkeep.transfer.load import ReadRule, Want, plan_load
from shardkeep.transfer.open_manifest import Headers
from shardkeep.transfer.opened import Opened
from shardkeep.transfer.progress import Meter
from shardkeep.transfer.read import Array, FileReads, Reader, in_flight
from shardkeep.transfer.share import Sharing

STRIPE_NBYTES = 8 * 1024 * 1024


def fetch_headers(opened: Opened, indices: Iterable[int], sharing: Sharing, *, threads: int) -> int:
    """Know these files, each of whose headers is read once by all ranks; the bytes read. SPMD."""
    places = opened.places
    # Other formats have files of their own that tell where tensors are.
    headers = places if isinstance(places, Headers) else None
    files = opened.manifest.files
    missing = headers.missing(sorted(indices)) if headers else []
    windows = [Window(index, 0, 0, files[index].header_nbytes) for index in missing]

    def read(window: Window, memory: Array) -> None:
        if headers is not None:
            memory[:] = np.frombuffer(headers.read_both(window.file)[1], np.uint8)

    def take(window: Window, data: Array) -> None:
        if headers is not None:
            headers.take(window.file, data.tobytes())

    threads = max(threads, in_flight(opened.storage))
    return sharing.exchange(windows, read, take, threads=threads, more=True).nbytes_read


def fill_together(
    opened: Opened,
    wants: Sequence[Want],
    sharing: Sharing,
    *,
    threads: int,
    verify: bool,
    meter: Meter,
    more: bool,
) -> int:
    """Fill the arrays of all wants; the number of bytes that this rank read. SPMD.

    `more` if this rank does so again: others, who do not, take part.
    """
    with gc_paused():
        # By the same rule on all ranks: what requests cost was measured by each for itself.
        plans = plan_load(opened, wants, threads=threads, rule=ReadRule())
    jobs = {plan.index: FileReads(plan.file, plan.reads, plan.arrays) for plan in plans}
    assembly = Assembly(jobs)
    windows = [
        window
        for index, job in sorted(jobs.items())
        for window in windows_of(
            index,
            assembly.spans(index),
            origin=job.file.data_start,
            stripe_nbytes=_stripe_nbytes(job.file.block_nbytes),
        )
    ]
    meter.expect(sum(window.nbytes for window in windows))
    reader = Reader(opened.storage, threads=threads, verify=verify, meter=meter)
    # Another rank may want what this one does not: it knows only then where its blocks are.
    file = cache(opened.places.open_file)

    def read(window: Window, memory: Array) -> None:
        reader.read_blocks(file(window.file), window.start, memory)

    def take(window: Window, data: Array) -> None:
        assembly.take(window, data)
        meter.add(window.nbytes)

    threads = max(threads, in_flight(opened.storage))
    return sharing.exchange(windows, read, take, threads=threads, more=more).nbytes_read


def _stripe_nbytes(block_nbytes: int) -> int:
    """About 8 MiB of whole blocks."""
    return max(block_nbytes, STRIPE_NBYTES - STRIPE_NBYTES % block_nbytes)

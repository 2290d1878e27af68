"""How do ranks that share their reads fill memory, and learn of the files that others read?"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np

from shardkeep.plan.sharing import Window, windows_of
from shardkeep.storage.protocols import CanFetch
from shardkeep.transfer.assembly import Assembly
from shardkeep.transfer.load import FilePlan, ReadRule, Want, plan_load
from shardkeep.transfer.open_manifest import Headers
from shardkeep.transfer.opened import Opened
from shardkeep.transfer.progress import Meter
from shardkeep.transfer.pump import IN_FLIGHT_NBYTES
from shardkeep.transfer.read import Array, FileReads, Reader, in_flight
from shardkeep.transfer.share import Sharing

STRIPE_NBYTES = 8 * 1024 * 1024
# What is read from near should still be in the cache when others take it.
_NEAR_STRIPE_NBYTES = 2 * 1024 * 1024
# The same rule on all ranks: what requests cost was measured by each for itself.
SHARED = ReadRule(in_spans=True)


def fetch_headers(opened: Opened, indices: Iterable[int], sharing: Sharing, *, threads: int) -> int:
    """Know these files, each of whose headers is read once by all ranks; the bytes read. SPMD."""
    places = opened.places
    # Other formats have files of their own that tell where tensors are.
    headers = places if isinstance(places, Headers) else None
    files = opened.manifest.files
    missing = headers.missing(sorted(indices)) if headers else []
    windows = [Window(index, 0, 0, files[index].header_nbytes) for index in missing]

    threads = max(threads, in_flight(opened.storage))
    acts = _HeaderActs(headers)
    return sharing.exchange(windows, acts, threads=threads, more=True).nbytes_read


class _HeaderActs:
    """Headers, each of which is one window."""

    in_flight_nbytes = IN_FLIGHT_NBYTES
    brings_memory = True

    def __init__(self, headers: Headers | None) -> None:
        self._headers = headers

    def read(self, window: Window, memory: Array | None) -> Array:
        data = self._headers.read_both(window.file)[1] if self._headers else b""
        return np.frombuffer(data, np.uint8)

    def take(self, window: Window, data: Array) -> None:
        if self._headers is not None:
            self._headers.take(window.file, data.tobytes())

    def stands_alone(self, window: Window) -> bool:
        return True

    def read_alone(self, window: Window) -> None:
        if self._headers is not None:
            self._headers.fetch([window.file], threads=1)


def fill_together(
    opened: Opened,
    wants: Sequence[Want],
    sharing: Sharing,
    *,
    threads: int,
    verify: bool,
    meter: Meter,
    scattered: Sequence[FilePlan],
    again: bool,
) -> int:
    """Fill the arrays of all wants, and scatter; the number of bytes that this rank read. SPMD.

    What it alone wants goes straight to where it belongs. `again` if this rank does so again: those
    who do not take part in it.
    """
    plans = plan_load(opened, wants, threads=threads, rule=SHARED)
    jobs = jobs_of(plans, scattered)
    assembly = Assembly(jobs)
    is_distant = isinstance(opened.storage, CanFetch)
    stripe = STRIPE_NBYTES if is_distant else min(STRIPE_NBYTES, _NEAR_STRIPE_NBYTES)
    windows = [
        window
        for index, job in sorted(jobs.items())
        for window in windows_of(
            index,
            assembly.spans(index),
            origin=job.file.data_start,
            stripe_nbytes=_whole_blocks(stripe, job.file.block_nbytes),
        )
    ]
    meter.expect(sum(window.nbytes for window in windows))
    reader = Reader(opened.storage, threads=threads, verify=verify, meter=meter)
    # While one is taken, the next is read; where ranks have no core each, another rank works then.
    near_count = 1 if sharing.member_count > (os.cpu_count() or 1) else 2
    in_flight_nbytes = IN_FLIGHT_NBYTES if is_distant else near_count * _NEAR_STRIPE_NBYTES
    acts = _DataActs(opened, assembly, reader, meter, in_flight_nbytes=in_flight_nbytes)
    threads = max(threads, in_flight(opened.storage))
    return sharing.exchange(windows, acts, threads=threads, more=again).nbytes_read


def jobs_of(plans: Iterable[FilePlan], scattered: Sequence[FilePlan]) -> dict[int, FileReads]:
    """All reads of each file, in its order. Those that scatter know their targets themselves."""
    jobs = {plan.index: FileReads(plan.file, plan.reads, plan.arrays) for plan in plans}
    for plan in scattered:
        known = jobs.get(plan.index, FileReads(plan.file, (), ()))
        reads = sorted([*known.reads, *plan.reads], key=lambda read: read.start)
        jobs[plan.index] = FileReads(plan.file, reads, known.targets)
    return jobs


class _DataActs:
    """Windows of whole blocks, on their way into the memory that wants them."""

    def __init__(
        self,
        opened: Opened,
        assembly: Assembly,
        reader: Reader,
        meter: Meter,
        *,
        in_flight_nbytes: int,
    ) -> None:
        # Another rank may want what this one does not: it knows only then where its blocks are.
        self._file = cache(opened.places.open_file)
        self._is_distant = isinstance(opened.storage, CanFetch)
        self.in_flight_nbytes = in_flight_nbytes
        self.brings_memory = self._is_distant
        self._assembly = assembly
        self._reader = reader
        self._meter = meter

    def read(self, window: Window, memory: Array | None) -> Array:
        file = self._file(window.file)
        if memory is None:
            return self._reader.read_scratch(file, window.start, window.stop)
        self._reader.read_blocks(file, window.start, memory)
        return memory

    def take(self, window: Window, data: Array) -> None:
        self._assembly.take(window, data)
        self._meter.add(window.nbytes)

    def stands_alone(self, window: Window) -> bool:
        return self._assembly.stands_alone(window)

    def read_alone(self, window: Window) -> Array | None:
        file = self._file(window.file)
        # What comes from a distance may come late, when the load has failed: it is looked at first.
        memory = None if self._is_distant else self._assembly.memory_of(window)
        if memory is None:
            return self._reader.read_scratch(file, window.start, window.stop)
        self._reader.read_parts(file, window.start, memory)
        self._meter.add(window.nbytes)
        return None


def _whole_blocks(nbytes: int, block_nbytes: int) -> int:
    """About so many bytes, of whole blocks."""
    return max(block_nbytes, nbytes - nbytes % block_nbytes)

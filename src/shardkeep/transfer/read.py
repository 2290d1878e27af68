"""How do planned reads fill memory, with every block checked on the way?

Torch-free: destinations are NumPy arrays whose items have the stored item size.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import xxhash

from shardkeep.errors import CorruptError
from shardkeep.manifest import Digests
from shardkeep.plan.reads import Copy, Read, ScatterRead, SpanRead, WindowRead
from shardkeep.storage.protocols import CanFetch, CanKeepOpen, ReadAt
from shardkeep.storage.rooms import empty_room
from shardkeep.transfer.columns import within
from shardkeep.transfer.moving import copy_runs
from shardkeep.transfer.progress import Meter
from shardkeep.transfer.runs import Act, Array, Run, acts_of

# Direct reads are checked in steps, while what was read is still in the cache.
_STEP_NBYTES = 2 * 1024 * 1024
T = TypeVar("T")


class Source(Protocol):
    """What is used of a storage."""

    def read_into(self, key: str, offset: int, buffers: Sequence[Any], /) -> None: ...


@runtime_checkable
class HasCopies(Protocol):
    """A storage that may have several copies of an object."""

    def copy_of(self, key: str) -> int:
        """The number of the copy that is read now."""
        ...

    def next_copy(self, key: str, after: int) -> bool:
        """Have the copy after this one read from now on; False if there is none."""
        ...


def read_good(source: object, key: str, read: Callable[[], T]) -> T:
    """What `read` gives of the first copy of an object that is not damaged."""
    while True:
        copies = source if isinstance(source, HasCopies) else None
        at = copies.copy_of(key) if copies else 0
        try:
            return read()
        except CorruptError:
            if copies is None or not copies.next_copy(key, at):
                raise


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A data file whose header was read: where its blocks are and what their digests must be."""

    name: str
    data_start: int
    nbytes: int
    block_nbytes: int
    digests: Digests | None
    """None in formats that have none: what is read cannot be checked."""
    name_bytes: Callable[[int, int], str]
    """The tensors that lie in a byte range, for messages."""


@dataclass(frozen=True, slots=True)
class FileReads:
    """All reads of one file, and the arrays that they fill by target number."""

    file: OpenFile
    reads: Sequence[Read]
    targets: Sequence[Array]


def in_flight(source: object) -> int:
    """How many reads of a storage may be under way at once, whatever the number of threads."""
    return source.costs().in_flight if isinstance(source, CanFetch) else 1


def nbytes_of(file: OpenFile, read: Read) -> int:
    """How many bytes a read takes from the file, whole blocks."""
    first, last = block_span(file, read.start, read.stop)
    return last - first


class Reader:
    """Carries out reads with some threads; each has a scratch buffer that it reuses."""

    def __init__(
        self,
        source: Source,
        *,
        threads: int,
        verify: bool,
        meter: Meter,
    ) -> None:
        self._source = source
        self._has_copies = isinstance(source, HasCopies)
        # From a distance, many requests fly at once: they wait for the store, not for a core.
        self._distant = source if isinstance(source, CanFetch) else None
        self._keeps_open: CanKeepOpen | None = None
        if isinstance(source, CanKeepOpen) and not self._has_copies:
            self._keeps_open = source
        self._threads = max(threads, in_flight(source))
        self._verify = verify
        self._meter = meter
        self._local = threading.local()

    def run(self, jobs: Iterable[FileReads]) -> int:
        """Fill all targets; the number of bytes read. What comes first is read while others come.

        When one read fails, or the jobs do, those that have not begun are dropped.
        """
        acts = ((job, act) for job in jobs for act in acts_of(job.reads, job.targets, job.file))
        first = list(islice(acts, 2))
        if self._threads == 1 or len(first) < 2:
            return sum(self._act(job, act) for job, act in chain(first, acts))
        pool = ThreadPoolExecutor(self._threads, "shardkeep-read")
        try:
            reads = [pool.submit(self._act, job, act) for job, act in chain(first, acts)]
            return sum(read.result() for read in reads)
        finally:
            pool.shutdown(cancel_futures=True)

    def _act(self, job: FileReads, act: Act) -> int:
        match act:
            case Run():
                nbytes = self._direct(job.file, act)
            case WindowRead():
                nbytes = self._window(job, act)
            case SpanRead():
                nbytes = self._span(job, act)
            case ScatterRead():
                data = self.read_scratch(job.file, act.start, act.stop)
                copy_runs(within(act.runs, act.start, act.stop), data, act.start)
                nbytes = act.stop - act.start
        self._meter.add(nbytes)
        return nbytes

    def _direct(self, file: OpenFile, run: Run) -> int:
        """Whole blocks go straight to the targets; a block that is wanted in part, by scratch."""
        with self._reading(file) as read:
            return sum(
                self._step(file, run, step, read) for step in _steps(file, run.start, run.stop)
            )

    def _step(self, file: OpenFile, run: Run, step: tuple[int, int], read: ReadAt) -> int:
        start, stop = step
        parts = run.parts(start, stop)
        first, last = block_span(file, start, stop)
        if (first, last) == step:
            read(start, parts)
        else:
            scratch = self.read_scratch(file, first, last)
            at = start - first
            for part in parts:
                part[:] = scratch.data[at : at + len(part)]
                at += len(part)
        return last - first

    @contextmanager
    def _reading(self, file: OpenFile) -> Generator[ReadAt]:
        """Reads whole blocks, checked; the file is looked up once if the storage can."""
        if self._keeps_open is None:
            yield partial(self.read_parts, file)
            return
        with self._keeps_open.reading(file.name) as read_at:

            def read(start: int, parts: list[memoryview]) -> None:
                read_at(start, list(parts))
                self._check(file, start, parts)

            yield read

    def _window(self, job: FileReads, read: WindowRead) -> int:
        scratch = self.read_scratch(job.file, read.start, read.stop)
        for copy in read.copies:
            copy_out(scratch, read.start, copy, job.targets[copy.target])
        return read.stop - read.start

    def _span(self, job: FileReads, read: SpanRead) -> int:
        data = self.read_scratch(job.file, read.start, read.stop)
        for part in read.parts:
            target = job.targets[part.target].reshape(-1).view(np.uint8)
            found = data[part.start - read.start : part.stop - read.start]
            target[part.at : part.at + len(found)] = found
        return read.stop - read.start

    def read_scratch(self, file: OpenFile, start: int, stop: int) -> Array:
        """Bytes that are good until the thread reads again."""
        if self._distant is not None:
            # Without a copy: they stay where they came in.
            scratch = np.frombuffer(self._distant.fetch(file.name, start, stop - start), np.uint8)
            self._check(file, start, [scratch.data])
            return scratch
        scratch = self._scratch(stop - start)
        self.read_blocks(file, start, scratch)
        return scratch

    def read_blocks(self, file: OpenFile, start: int, memory: Array) -> None:
        """Fill `memory` with whole blocks of a file, checked; if damaged, of another copy."""
        self.read_parts(file, start, [memory.data])

    def read_parts(self, file: OpenFile, start: int, parts: Sequence[memoryview]) -> None:
        """The same for blocks that go to several pieces of memory."""

        def read() -> None:
            self._source.read_into(file.name, start, parts)
            self._check(file, start, parts)

        if self._has_copies:
            read_good(self._source, file.name, read)
        else:
            read()

    def _scratch(self, nbytes: int) -> Array:
        buffer: Array | None = getattr(self._local, "buffer", None)
        if buffer is None or buffer.nbytes < nbytes:
            buffer = self._local.buffer = empty_room(nbytes)
        return buffer[:nbytes]

    def _check(self, file: OpenFile, start: int, parts: Sequence[memoryview]) -> None:
        if self._verify and file.digests is not None:
            require_blocks(file, file.digests, start, parts)


def require_blocks(
    file: OpenFile, digests: Digests, start: int, parts: Sequence[memoryview]
) -> None:
    """Compare the digest of every block of these bytes, which start at a block's first byte."""
    size, number = file.block_nbytes, (start - file.data_start) // file.block_nbytes
    found = _digests_of(parts, size)
    # All at once: other threads wait for every line of Python.
    if b"".join(found) == digests.raw_of(number, number + len(found)):
        return
    stop = start + sum(map(len, parts))
    for index, digest in enumerate(found):
        if digest != digests.raw_of(number + index, number + index + 1):
            first = start + index * size
            last = min(first + size, stop)
            raise CorruptError(
                f"{file.name}: bytes {first} to {last} are not what was written "
                f"({file.name_bytes(first, last)}); take another copy of the checkpoint or an "
                "earlier step"
            )


def _digests_of(parts: Sequence[memoryview], size: int) -> list[bytes]:
    """The digest of each block; a block may lie in several parts, the last one may be short."""
    found: list[bytes] = []
    block, missing = xxhash.xxh3_64(), 0
    for part in parts:
        if missing:
            block.update(part[:missing])
            if len(part) < missing:
                missing -= len(part)
                continue
            found.append(block.digest())
        whole = len(part) - (len(part) - missing) % size
        found += [xxhash.xxh3_64_digest(part[at : at + size]) for at in range(missing, whole, size)]
        missing = 0
        if whole < len(part):
            block = xxhash.xxh3_64(part[whole:])
            missing = size - (len(part) - whole)
    if missing:
        found.append(block.digest())
    return found


def _steps(file: OpenFile, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """The range cut at block boundaries: ragged ends by themselves, whole blocks in steps."""
    size = file.block_nbytes
    first_whole = start + (file.data_start - start) % size
    last_whole = stop - (stop - file.data_start) % size
    if stop == file.nbytes:
        last_whole = stop
    if first_whole >= last_whole:
        yield start, stop
        return
    if start < first_whole:
        yield start, first_whole
    step = max(size, _STEP_NBYTES - _STEP_NBYTES % size)
    for at in range(first_whole, last_whole, step):
        yield at, min(at + step, last_whole)
    if last_whole < stop:
        yield last_whole, stop


def block_span(file: OpenFile, start: int, stop: int) -> tuple[int, int]:
    """The whole blocks that hold a range."""
    size = file.block_nbytes
    first = start - (start - file.data_start) % size
    last = min(stop + (file.data_start - stop) % size, file.nbytes)
    return first, last


def copy_out(scratch: Array, window_start: int, copy: Copy, target: Array) -> None:
    """Copy a box from the bytes of a window to its place in a target."""
    # The ellipsis makes a view also of a 0-dim target.
    _copy_items(scratch, copy.start - window_start, copy, target[(*copy.place.slices(), ...)])


def copy_rows(
    scratch: Array, window_start: int, copy: Copy, target: Array, rows: tuple[int, int, int]
) -> None:
    """The same for some rows of the box: the dim that counts them, the first, behind the last."""
    dim, first, last = rows
    slices = list(copy.place.slices())
    at = copy.place.start[dim]
    slices[dim] = slice(at + first, at + last)
    start = copy.start - window_start + first * copy.strides[dim]
    _copy_items(scratch, start, copy, target[tuple(slices)])


def _copy_items(scratch: Array, start: int, copy: Copy, place: Array) -> None:
    if not place.size:
        return
    # In our own files items lie aligned here; in those of others NumPy copes.
    items = np.ndarray(place.shape, place.dtype, scratch.data, start, copy.strides)
    np.copyto(place, items)

"""How are stored tensors read in pieces: in bounded memory, on all cores, nothing twice?

Each stored chunk is cut into pieces, pieces are put in the order of the files, and those that
follow each other are read in one go until a batch is full. A large tensor is thus read by many
threads, and many small ones by one.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from shardkeep.boxes import Box
from shardkeep.manifest import TensorRecord, itemsize
from shardkeep.plan import cut
from shardkeep.storage.rooms import empty_room
from shardkeep.transfer.load import BIT_DTYPES, Want, fill
from shardkeep.transfer.opened import Opened
from shardkeep.transfer.progress import Meter
from shardkeep.transfer.read import Array
from shardkeep.transfer.threads import core_count
from shardkeep.view.workers import Act, can_fork, run_forked

BATCH_NBYTES = 8 * 2**20
# Less is done sooner than processes are started.
_MIN_FORKED_NBYTES = 64 * 2**20
# While one waits for its bytes, the other computes.
_PER_CORE = 2
_ALIGNMENT = 64

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Batch:
    """Boxes of tensors that are read at once."""

    pieces: tuple[tuple[TensorRecord, Box], ...]
    nbytes: int


def plan_batches(
    opened: Opened, keys: Sequence[str], *, batch_nbytes: int = BATCH_NBYTES
) -> list[Batch]:
    """Batches of about `batch_nbytes` at most that hold every cell of the tensors once."""
    manifest, places = opened.manifest, opened.places
    records = [manifest.tensor(key) for key in keys]
    chunks = [(index, one, box) for one in records for box, index in manifest.chunks(one)]
    places.fetch(dict.fromkeys(index for index, _, _ in chunks), threads=core_count())
    chunks.sort(key=lambda chunk: (chunk[0], places.chunk(*chunk).start))
    batches: list[Batch] = []
    pending: list[tuple[TensorRecord, Box]] = []
    room = batch_nbytes
    for _, record, chunk in chunks:
        size = itemsize(record.dtype)
        for part in cut(chunk.shape, max(1, batch_nbytes // size)):
            nbytes = part.numel * size
            if pending and nbytes > room:
                batches.append(Batch(tuple(pending), batch_nbytes - room))
                pending, room = [], batch_nbytes
            pending.append((record, part.shifted(chunk.start)))
            room -= nbytes
    if pending:
        batches.append(Batch(tuple(pending), batch_nbytes - room))
    return batches


class PieceReader:
    """Reads the boxes of a batch as bits, checked, into memory that each thread uses again."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self._local = threading.local()

    def read(self, pieces: Sequence[tuple[TensorRecord, Box]]) -> list[Array]:
        """The boxes, good until this thread reads again."""
        sizes = [box.numel * itemsize(record.dtype) for record, box in pieces]
        memory = self._memory(sum(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes))
        wants: list[Want] = []
        at = 0
        for (record, box), size in zip(pieces, sizes, strict=True):
            bits = memory[at : at + size].view(BIT_DTYPES[itemsize(record.dtype)])
            wants.append(Want(record, box, bits.reshape(box.shape)))
            at += -(-size // _ALIGNMENT) * _ALIGNMENT
        with Meter("reading", None, show=False) as silent:
            fill(self._opened, wants, threads=1, verify=True, meter=silent)
        return [want.array for want in wants]

    def _memory(self, nbytes: int) -> Array:
        memory: Array | None = getattr(self._local, "memory", None)
        if memory is None or memory.nbytes < nbytes:
            memory = self._local.memory = empty_room(nbytes)
        return memory


class _StoppingMeter(Meter):
    """A meter that ends the acts that report to it once nobody waits for them any more."""

    stopped = False

    def add(self, nbytes: int) -> None:
        if self.stopped:
            raise CancelledError
        super().add(nbytes)


def run_all(
    acts: Sequence[Act[T]],
    nbytes: int,
    what: str,
    *,
    show: bool,
    threads: int = 0,
    kind: type[T] | None = None,
) -> list[T]:
    """What each act gives, in order; each reports its bytes as they are done. All cores work.

    Acts that compute say of which `kind` it is: if they are long, processes share them.
    """
    meter = _StoppingMeter(what, None, show=show)
    threads = threads or core_count()
    with meter:
        meter.expect(nbytes)
        found: dict[int, T] = {}
        if kind is not None and threads > 1 and nbytes >= _MIN_FORKED_NBYTES and can_fork():
            found |= run_forked(acts, kind, workers=_PER_CORE * threads, done=meter.add)
        pool = ThreadPoolExecutor(threads, "shardkeep-view")
        try:
            left = [number for number in range(len(acts)) if number not in found]
            waiting = [(number, pool.submit(acts[number], meter)) for number in left]
            found |= {number: one.result() for number, one in waiting}
            return [found[number] for number in range(len(acts))]
        finally:
            # Else Ctrl-C would wait for all that has not begun yet, or is under way.
            meter.stopped = True
            pool.shutdown(cancel_futures=True)

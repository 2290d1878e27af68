"""How are many small tensors filled that lie whole in a file?

Blocks are read and checked as ever, some at a time; from there each tensor's bytes are copied to
its memory. Nothing is made for a single tensor but numbers in columns: there may be many thousands.

Torch-free: memory is told by its address.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from shardkeep.boxes import Box
from shardkeep.manifest import TensorRecord, itemsize
from shardkeep.plan.reads import DIRECT_NBYTES, Runs, ScatterRead
from shardkeep.transfer.load import FilePlan, ReadRule
from shardkeep.transfer.open_manifest import Headers
from shardkeep.transfer.opened import Opened
from shardkeep.transfer.read import OpenFile

# What is read from near stays in the cache until it is copied out.
_NEAR_NBYTES = 2 * 1024 * 1024


class Place(Protocol):
    """Memory for a box of a stored tensor, which stays where it is."""

    @property
    def record(self) -> TensorRecord: ...
    @property
    def box(self) -> Box: ...
    @property
    def address(self) -> int | None:
        """Where it starts if it lies in one piece and takes the bytes as they are stored."""
        ...


_PlaceT = TypeVar("_PlaceT", bound=Place)


@dataclass(slots=True)
class _Alike:
    """Tensors of one dtype and shape of which the same box lies whole in the same file."""

    index: int
    box: Box
    nbytes: int
    """0 if this is not the way for them."""
    places: list[Place] = field(default_factory=list[Place])


class Scatter:
    """Small boxes of stored tensors that go to memory which lies in one piece."""

    def __init__(self, opened: Opened, headers: Headers) -> None:
        self._opened = opened
        self._headers = headers
        self._known: dict[object, _Alike] = {}

    @classmethod
    def of(cls, opened: Opened) -> Scatter | None:
        """None for foreign files, which are read in another way."""
        places = opened.places
        return cls(opened, places) if isinstance(places, Headers) else None

    def take(self, places: Sequence[_PlaceT]) -> list[_PlaceT]:
        """Have memory filled where this is the way; the rest, to be filled in another.

        The boxes are kept by the caller.
        """
        known, rest = self._known, list[_PlaceT]()
        # There may be many thousands: no call is made for one.
        for place in places:
            record, box = place.record, place.box
            # Boxes of tensors alike are one object: by its identity it is found much faster.
            kind = record.grid, record.dtype, record.shape, id(box)
            alike = known.get(kind)
            if alike is None:
                alike = known[kind] = self._alike(record, box)
            if alike.nbytes and place.address is not None:
                alike.places.append(place)
            else:
                rest.append(place)
        return rest

    def _alike(self, record: TensorRecord, box: Box) -> _Alike:
        nbytes = box.numel * itemsize(record.dtype)
        if 0 < nbytes < DIRECT_NBYTES:
            chunks = self._opened.manifest.chunks_meeting(record, box)
            if len(chunks) == 1 and chunks[0][0] == box:
                return _Alike(chunks[0][1], box, nbytes)
        return _Alike(-1, box, 0)

    def plans(self, rule: ReadRule, *, threads: int) -> list[FilePlan]:
        """What to read of which file; reads the headers of these files, but no data."""
        by_file: dict[int, list[_Alike]] = {}
        for alike in self._known.values():
            if alike.places:
                by_file.setdefault(alike.index, []).append(alike)
        self._headers.fetch(by_file, threads=threads)
        found: list[FilePlan] = []
        for index, tensors in by_file.items():
            file, runs = self._headers.open_file(index), self._runs(index, tensors)
            found.append(FilePlan(index, file, list(_reads(file, runs, rule)), []))
        return found

    def _runs(self, index: int, found: Sequence[_Alike]) -> Runs:
        places = [place for alike in found for place in alike.places]
        starts = np.concatenate([self._starts(index, alike) for alike in found])
        sizes = np.concatenate([np.full(len(alike.places), alike.nbytes) for alike in found])
        addresses = np.array([place.address for place in places], np.int64)
        order = np.argsort(starts, kind="stable")
        return Runs(starts[order], (starts + sizes)[order], addresses[order], places)

    def _starts(self, index: int, alike: _Alike) -> NDArray[np.int64]:
        records = [place.record for place in alike.places]
        return np.array(self._headers.starts(index, records, alike.box), np.int64)


def _reads(file: OpenFile, runs: Runs, rule: ReadRule) -> Iterator[ScatterRead]:
    """Reads that hold everything, each block in one of them, none without a byte that is wanted."""
    size = file.block_nbytes
    window = rule.window_nbytes if rule.in_spans else _NEAR_NBYTES
    step = max(size, window - window % size)
    for start, stop in _close_together(file, runs, rule.max_gap_nbytes):
        for at in range(start, stop, step):
            end = min(at + step, stop)
            before = int(np.searchsorted(runs.starts, end, "left"))
            if before and runs.stops[before - 1] > at:
                yield ScatterRead(at, end, runs)


def _close_together(file: OpenFile, runs: Runs, max_gap: int) -> Iterator[tuple[int, int]]:
    """Whole blocks that follow each other, small gaps included."""
    origin = file.data_start
    first = runs.starts - (runs.starts - origin) % file.block_nbytes
    last = runs.stops + (origin - runs.stops) % file.block_nbytes
    last = np.minimum(last, file.nbytes)
    breaks = np.flatnonzero(first[1:] - last[:-1] > max_gap) + 1
    edges = [0, *breaks.tolist(), len(first)]
    for begin, end in itertools.pairwise(edges):
        yield int(first[begin]), int(last[end - 1])

"""Which holder writes a replicated box, and to which of its files, so that all write alike much?

Every rank walks through the same tensors in the same order and keeps the same books, so all come
to the same answer without a word.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from shardkeep.boxes import Box
from shardkeep.layouts import Layout, MeshLayout, Part, Replicate
from shardkeep.plan.divide import (
    Cut,
    Division,
    ListedDivision,
    RegularDivision,
    regular_cuts,
    replica_count,
)

# A box above this share of what a writer should write is cut; below, whole boxes balance well.
_MAX_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Tensor:
    """What planning needs to know of a tensor that is to be written."""

    layout: Layout
    itemsize: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.layout.shape) * self.itemsize


@dataclass(slots=True)
class _Books:
    """Bytes given so far to each of `count` takers; ties go to the first."""

    count: int
    heap: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    def __post_init__(self) -> None:
        self.heap = [(0, index) for index in range(self.count)]

    def give(self, nbytes: int) -> int:
        """The taker with the least so far, who gets `nbytes` more."""
        load, index = self.heap[0]
        heapq.heapreplace(self.heap, (load + nbytes, index))
        return index


def _books(known: dict[object, _Books], takers: object, count: int) -> _Books:
    """The books of these takers; made when first asked for, as thousands may be among them."""
    books = known.get(takers)
    if books is None:
        books = known[takers] = _Books(count)
    return books


def plan_divisions(tensors: Mapping[str, Tensor], *, file_count: int) -> dict[str, Division]:
    """How each tensor is cut and who writes what; the same on every rank.

    Tensors without cells are left out: there is nothing to write.
    """
    sized = {key: tensor for key, tensor in tensors.items() if tensor.nbytes}
    writers = _Writers(sized, file_count)
    # Largest first: the small ones then even out what is left.
    order = sorted(sized, key=lambda key: (-sized[key].nbytes, key))
    made = {key: writers.divide(sized[key]) for key in order}
    return {key: made[key] for key in sized}


class _Writers:
    """The books of all sets of replicas, and of the files of a rank."""

    def __init__(self, tensors: Mapping[str, Tensor], file_count: int) -> None:
        self.file_count = file_count
        self.files: dict[object, _Books] = {}
        self.replicas: dict[object, _Books] = {}
        # Only bytes of the same class count: ranks that share a class know all of its tensors,
        # while of other tensors one may know more than another.
        self.class_nbytes: dict[object, int] = {}
        for tensor in tensors.values():
            holders = _holder_class(tensor.layout)
            self.class_nbytes[holders] = self.class_nbytes.get(holders, 0) + tensor.nbytes

    def divide(self, tensor: Tensor) -> Division:
        cuts = regular_cuts(tensor.layout)
        if cuts is None or not isinstance(tensor.layout, MeshLayout):
            return self._divide_listed(tensor)
        division = self._share_replicas(RegularDivision(tensor.layout, cuts), tensor)
        return self._share_files(division, tensor)

    def _share_replicas(self, division: RegularDivision, tensor: Tensor) -> RegularDivision:
        count = replica_count(division.layout)
        if count == 1:
            return division
        holders = _holder_class(tensor.layout)
        fair = self.class_nbytes[holders] / count
        if tensor.nbytes > _MAX_SHARE * fair:
            split = _cut_once_more(division, Cut(count, "replicas"))
            if split is not None:
                return split
        return replace(division, replica=_books(self.replicas, holders, count).give(tensor.nbytes))

    def _share_files(self, division: RegularDivision, tensor: Tensor) -> RegularDivision:
        if self.file_count == 1:
            return division
        rank_count = len(division.layout.mesh.ranks)
        holders = _holder_class(tensor.layout)
        mine = tensor.nbytes / rank_count
        fair = self.class_nbytes[holders] / rank_count / self.file_count
        if mine > _MAX_SHARE * fair:
            split = _cut_once_more(division, Cut(self.file_count, "files"))
            if split is not None:
                return split
        writers = (holders, division.replica)
        return replace(division, number=self._file(writers, math.ceil(mine)))

    def _file(self, writers: object, nbytes: int) -> int:
        # Books for each set of writers: taking turns with the replicas would not even out files.
        return _books(self.files, writers, self.file_count).give(nbytes)

    def _divide_listed(self, tensor: Tensor) -> ListedDivision:
        chunks: list[tuple[Part, Box, int]] = []
        for box, holders in tensor.layout.holders.items():
            nbytes = box.numel * tensor.itemsize
            writer = self._writer(holders, nbytes)
            chunks.append((writer, box, self._file(writer.rank, nbytes)))
        return ListedDivision(tensor.layout.shape, tuple(chunks))

    def _writer(self, holders: Sequence[Part], nbytes: int) -> Part:
        if len(holders) == 1:
            return holders[0]
        ranks = tuple(part.rank for part in holders)
        return holders[_books(self.replicas, ranks, len(ranks)).give(nbytes)]


def _holder_class(layout: Layout) -> object:
    """Tensors of one class have the same sets of replicas, so that their bytes can be balanced."""
    if isinstance(layout, MeshLayout):
        return layout.mesh, tuple([isinstance(p, Replicate) for p in layout.placements])
    return layout.ranks


def _cut_once_more(division: RegularDivision, cut: Cut) -> RegularDivision | None:
    """The division with each cell cut evenly along some dim; None if no dim has enough rows."""
    for dim, side in enumerate(division.layout.shape):
        cells = math.prod(one.count for one in division.cuts[dim])
        # An uneven last piece stays below a twentieth of the others.
        if side // cells >= 20 * cut.count or (side % (cells * cut.count) == 0 and side):
            cuts = list(division.cuts)
            cuts[dim] = (*cuts[dim], cut)
            return replace(division, cuts=tuple(cuts))
    return None

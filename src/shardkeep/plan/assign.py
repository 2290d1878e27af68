"""Which holder writes a replicated box, and to which of its files, so that all write alike much?

Every rank walks through the same tensors in the same order and keeps the same books, so all come
to the same answer without a word.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
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
    # Tensors alike are one object: what is said of one is worked out once.
    alike = {id(tensor): tensor for tensor in tensors.values()}
    nbytes_of = {one: tensor.nbytes for one, tensor in alike.items()}
    sizes = {key: nbytes for key, one in tensors.items() if (nbytes := nbytes_of[id(one)])}
    writers = _Writers(tensors, sizes, file_count)
    # Largest first, those of one size by key: the small ones then even out what is left.
    order = sorted(sorted(sizes), key=sizes.__getitem__, reverse=True)
    made = {key: writers.divide(tensors[key], sizes[key]) for key in order}
    return {key: made[key] for key in sizes}


@dataclass(frozen=True, slots=True)
class _Rule:
    """How tensors alike are divided; each has its turn with the replicas and files."""

    division: RegularDivision
    holders: object
    replica_count: int
    """Who take turns; 1 if all write, each a piece."""
    file_count: int
    rank_nbytes: int
    """What a rank writes of one."""
    made: dict[tuple[int, int], RegularDivision] = field(
        default_factory=dict[tuple[int, int], RegularDivision]
    )

    def at(self, replica: int, number: int) -> RegularDivision:
        """The division with this turn; equal ones are one object."""
        turn = replica, number
        if turn not in self.made:
            self.made[turn] = replace(self.division, replica=replica, number=number)
        return self.made[turn]


class _Writers:
    """The books of all sets of replicas, and of the files of a rank."""

    def __init__(
        self, tensors: Mapping[str, Tensor], sizes: Mapping[str, int], file_count: int
    ) -> None:
        self.file_count = file_count
        self.files: dict[object, _Books] = {}
        self.replicas: dict[object, _Books] = {}
        self.rules: dict[int, _Rule | None] = {}
        """By the identity of a tensor, which many keys share."""
        # Only bytes of the same class count: ranks that share a class know all of its tensors,
        # while of other tensors one may know more than another.
        self.class_nbytes: dict[object, int] = {}
        counts = Counter([id(tensors[key]) for key in sizes])
        for tensor in {id(tensors[key]): tensors[key] for key in sizes}.values():
            holders, nbytes = _holder_class(tensor.layout), tensor.nbytes * counts[id(tensor)]
            self.class_nbytes[holders] = self.class_nbytes.get(holders, 0) + nbytes

    def divide(self, tensor: Tensor, nbytes: int) -> Division:
        if id(tensor) not in self.rules:
            self.rules[id(tensor)] = self._rule(tensor, nbytes)
        rule = self.rules[id(tensor)]
        if rule is None:
            return self._divide_listed(tensor)
        replica = number = 0
        if rule.replica_count > 1:
            replica = _books(self.replicas, rule.holders, rule.replica_count).give(nbytes)
        if rule.file_count > 1:
            number = self._file((rule.holders, replica), rule.rank_nbytes)
        return rule.at(replica, number)

    def _rule(self, tensor: Tensor, nbytes: int) -> _Rule | None:
        """None for a tensor that follows no rule."""
        layout, cuts = tensor.layout, regular_cuts(tensor.layout)
        if cuts is None or not isinstance(layout, MeshLayout):
            return None
        division, holders = RegularDivision(layout, cuts), _holder_class(layout)
        replicas, ranks, files = replica_count(layout), len(layout.mesh.ranks), self.file_count
        if replicas > 1 and nbytes > _MAX_SHARE * self.class_nbytes[holders] / replicas:
            split = _cut_once_more(division, Cut(replicas, "replicas"))
            division, replicas = (division, replicas) if split is None else (split, 1)
        if files > 1 and nbytes > _MAX_SHARE * self.class_nbytes[holders] / files:
            split = _cut_once_more(division, Cut(files, "files"))
            division, files = (division, files) if split is None else (split, 1)
        return _Rule(division, holders, replicas, files, math.ceil(nbytes / ranks))

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

"""Which ranks hold which boxes of a tensor, and where in their memory?"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import xxhash

from shardkeep.boxes import Box, find_overlaps, require_tiling
from shardkeep.errors import LayoutError

if TYPE_CHECKING:
    from shardkeep.layouts.mesh import Mesh
    from shardkeep.layouts.placements import ForeignPlacement, Placement

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """A box of the global tensor that one rank holds.

    `buffer` numbers the rank's local tensors (a DTensor has one, a sharded tensor one
    for each shard); `place` is where in that tensor the box lies.
    """

    box: Box
    rank: int
    buffer: int
    place: Box


class Layout(ABC):
    """How one global shape is divided among ranks. Comparable and hashable."""

    @property
    @abstractmethod
    def shape(self) -> Shape:
        """The global shape."""

    @property
    @abstractmethod
    def ranks(self) -> tuple[int, ...]:
        """The global ranks that take part, in order; some may hold nothing."""

    @abstractmethod
    def parts_of(self, rank: int) -> tuple[Part, ...]:
        """What `rank` holds, without empty boxes; () for a rank that takes no part."""

    @abstractmethod
    def buffer_shapes_of(self, rank: int) -> tuple[Shape, ...]:
        """The shapes of the local tensors of `rank`, by buffer number."""

    def parts(self) -> Iterator[Part]:
        """Every part of every rank, rank by rank."""
        for rank in self.ranks:
            yield from self.parts_of(rank)

    def boxes_of(self, rank: int) -> tuple[Box, ...]:
        """The boxes that `rank` holds."""
        return tuple(part.box for part in self.parts_of(rank))

    @cached_property
    def holders(self) -> dict[Box, tuple[Part, ...]]:
        """Each distinct box with all its holders."""
        found: dict[Box, list[Part]] = {}
        for part in self.parts():
            found.setdefault(part.box, []).append(part)
        return {box: tuple(parts) for box, parts in found.items()}

    @cached_property
    def digest(self) -> str:
        """Tells apart who holds which box, and where; the same in every process."""
        numbers = [*self.shape, *(number for part in self.parts() for number in _numbers(part))]
        return xxhash.xxh3_64_hexdigest(struct.pack(f"<{len(numbers)}q", *numbers))

    def require_complete(self, what: str = "the layout") -> None:
        """Raise CoverError unless the distinct boxes tile the shape."""
        require_tiling(self.shape, tuple(self.holders), what=what)

    @property
    def has_replicas(self) -> bool:
        """Whether some box is held more than once."""
        return any(len(parts) > 1 for parts in self.holders.values())

    def describe(self) -> str:
        """One line a rank: `rank 0: [0:2, 0:4]`."""
        return "\n".join(
            f"rank {rank}: {', '.join(map(str, self.boxes_of(rank))) or 'nothing'}"
            for rank in self.ranks
        )

    @staticmethod
    def of(tensor: object, *, ranks: Iterable[int] | None = None) -> Layout:
        """The layout of a plain tensor, DTensor or sharded tensor.

        A plain tensor counts as replicated on `ranks`, by default on rank 0 alone.
        """
        from shardkeep.layouts.reading import layout_of

        return layout_of(tensor, tuple(ranks) if ranks is not None else (0,))

    @staticmethod
    def on_mesh(
        shape: Iterable[int], mesh: Mesh, placements: Iterable[Placement | ForeignPlacement]
    ) -> Layout:
        """The layout of a tensor with one placement for each axis of `mesh`."""
        from shardkeep.layouts.mesh_layout import mesh_layout
        from shardkeep.layouts.placements import placement_of

        return mesh_layout(tuple(shape), mesh, tuple(map(placement_of, placements)))

    @staticmethod
    def replicated(shape: Iterable[int], ranks: Iterable[int]) -> Layout:
        """Every rank holds the whole."""
        from shardkeep.layouts.mesh import Mesh
        from shardkeep.layouts.placements import Replicate

        return Layout.on_mesh(shape, Mesh.line(ranks), (Replicate(),))

    @staticmethod
    def chunked(shape: Iterable[int], dim: int, ranks: Iterable[int]) -> Layout:
        """`dim` cut over `ranks` by the chunk rule."""
        from shardkeep.layouts.mesh import Mesh
        from shardkeep.layouts.placements import Split

        return Layout.on_mesh(shape, Mesh.line(ranks), (Split(dim),))

    @staticmethod
    def grid(
        shape: Iterable[int], counts: Sequence[int], ranks: Iterable[int] | None = None
    ) -> Layout:
        """Each dim cut into `counts[dim]` chunks, cells given to `ranks` in row-major order."""
        import math

        from shardkeep.layouts.mesh import Mesh
        from shardkeep.layouts.placements import Split

        owners = tuple(ranks) if ranks is not None else tuple(range(math.prod(counts)))
        placements = tuple(Split(dim) for dim in range(len(counts)))
        return Layout.on_mesh(shape, Mesh(tuple(counts), owners), placements)

    @staticmethod
    def listed(
        shape: Iterable[int],
        boxes: Iterable[tuple[int, Box]],
        *,
        ranks: Iterable[int] | None = None,
    ) -> Layout:
        """Hand-made (rank, box) pairs; each box is a local tensor of its own.

        Equal boxes on several ranks are replicas; boxes that overlap otherwise are refused.
        """
        return ListedLayout.from_boxes(tuple(shape), tuple(boxes), ranks)


@dataclass(frozen=True)
class ListedLayout(Layout):
    """Boxes that follow no rule, written out."""

    global_shape: Shape
    listed_parts: tuple[Part, ...]
    buffer_shapes: tuple[tuple[int, tuple[Shape, ...]], ...]
    """The local tensors' shapes of each rank that takes part, by rank."""

    @classmethod
    def from_boxes(
        cls, shape: Shape, boxes: tuple[tuple[int, Box], ...], ranks: Iterable[int] | None
    ) -> ListedLayout:
        layout = cls.of_wishes(shape, boxes, ranks)
        _require_disjoint(layout.listed_parts)
        return layout

    @classmethod
    def of_wishes(
        cls,
        shape: Shape,
        boxes: Iterable[tuple[int, Box]],
        ranks: Iterable[int] | None = None,
    ) -> ListedLayout:
        """Boxes that ranks ask for: as targets they may overlap and leave gaps."""
        parts: list[Part] = []
        shapes: dict[int, list[Shape]] = {rank: [] for rank in ranks or ()}
        # Boxes have few shapes: those of one shape share their place.
        places: dict[Shape, Box] = {}
        for rank, box in boxes:
            _require_inside(shape, rank, box)
            own = shapes.setdefault(rank, [])
            place = Box.whole(box.shape)
            place = places.setdefault(place.stop, place)
            if not box.is_empty:
                parts.append(Part(box, rank, len(own), place))
            own.append(place.stop)
        frozen = tuple((rank, tuple(own)) for rank, own in sorted(shapes.items()))
        # Rank by rank, so that the same boxes in another order make an equal layout.
        parts.sort(key=lambda part: part.rank)
        return cls(shape, tuple(parts), frozen)

    @cached_property
    def _hash(self) -> int:
        return hash((self.global_shape, self.listed_parts, self.buffer_shapes))

    def __hash__(self) -> int:
        return self._hash

    @property
    def shape(self) -> Shape:
        return self.global_shape

    @property
    def ranks(self) -> tuple[int, ...]:
        return self._ranks

    @cached_property
    def _ranks(self) -> tuple[int, ...]:
        return tuple(rank for rank, _ in self.buffer_shapes)

    @cached_property
    def _parts_by_rank(self) -> dict[int, tuple[Part, ...]]:
        found: dict[int, list[Part]] = {}
        for part in self.listed_parts:
            found.setdefault(part.rank, []).append(part)
        return {rank: tuple(parts) for rank, parts in found.items()}

    def parts_of(self, rank: int) -> tuple[Part, ...]:
        return self._parts_by_rank.get(rank, ())

    def buffer_shapes_of(self, rank: int) -> tuple[Shape, ...]:
        return self._shapes_by_rank.get(rank, ())

    @cached_property
    def _shapes_by_rank(self) -> dict[int, tuple[Shape, ...]]:
        return dict(self.buffer_shapes)


def _numbers(part: Part) -> tuple[int, ...]:
    return part.rank, part.buffer, *part.box.start, *part.box.stop, *part.place.start


def _require_inside(shape: Shape, rank: int, box: Box) -> None:
    if box.ndim != len(shape) or not Box.whole(shape).contains(box):
        raise LayoutError(f"rank {rank}'s box {box} does not lie inside the shape {shape}")


def _require_disjoint(parts: Sequence[Part]) -> None:
    distinct = {part.box: part.rank for part in parts}
    boxes, owners = tuple(distinct), tuple(distinct.values())
    for first, second, shared in find_overlaps(boxes, limit=1):
        raise LayoutError(
            f"boxes overlap at {shared}: {boxes[first]} of rank {owners[first]} and "
            f"{boxes[second]} of rank {owners[second]}; boxes are equal (replicas) or disjoint"
        )

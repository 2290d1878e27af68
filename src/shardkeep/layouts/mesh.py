"""Which rank stands at which coordinate of a device mesh?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from shardkeep.errors import LayoutError


@dataclass(frozen=True)
class Mesh:
    """Global ranks arranged in a rectangle, row-major.

    >>> Mesh((2, 2), (0, 1, 2, 3)).coordinate_of(2)
    (1, 0)
    """

    shape: tuple[int, ...]
    ranks: tuple[int, ...]

    def __post_init__(self) -> None:
        if math.prod(self.shape) != len(self.ranks):
            raise LayoutError(
                f"a mesh of shape {self.shape} needs {math.prod(self.shape)} ranks, "
                f"got {len(self.ranks)}"
            )
        if len(set(self.ranks)) != len(self.ranks):
            raise LayoutError(f"a mesh names each rank once, got {self.ranks}")

    @classmethod
    def line(cls, ranks: Iterable[int]) -> Mesh:
        """A mesh of one axis."""
        return _line(tuple(ranks))

    @cached_property
    def _index_of_rank(self) -> dict[int, int]:
        return {rank: index for index, rank in enumerate(self.ranks)}

    @cached_property
    def _hash(self) -> int:
        return hash((self.shape, self.ranks))

    def __hash__(self) -> int:
        # Meshes of thousands of ranks key the plan caches: hash them once.
        return self._hash

    def __contains__(self, rank: object) -> bool:
        return rank in self._index_of_rank

    def coordinate_of(self, rank: int) -> tuple[int, ...] | None:
        """The rank's coordinate along each axis; None if it stands outside the mesh."""
        index = self._index_of_rank.get(rank)
        return None if index is None else unravel(index, self.shape)


@lru_cache(maxsize=1024)
def _line(ranks: tuple[int, ...]) -> Mesh:
    # Asked for each tensor of a state dict: made once, with the hash that it keeps.
    return Mesh((len(ranks),), ranks)


def unravel(index: int, shape: Sequence[int]) -> tuple[int, ...]:
    """The coordinate of a row-major index.

    >>> unravel(5, (2, 3))
    (1, 2)
    """
    coordinate: list[int] = []
    for side in reversed(shape):
        index, position = divmod(index, side)
        coordinate.append(position)
    return tuple(reversed(coordinate))

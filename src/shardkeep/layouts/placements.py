"""What does one axis of a mesh do to a tensor: split a dim, or repeat it?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from shardkeep.errors import LayoutError


@dataclass(frozen=True, slots=True)
class Replicate:
    """Every coordinate of the axis holds the same."""

    def __str__(self) -> str:
        return "R"


@dataclass(frozen=True, slots=True)
class Split:
    """The axis cuts `dim` by the chunk rule, after all axes to its left.

    With `interleave` = k, the dim is first cut into k chunks and each of these is cut
    along the axis; a coordinate holds its piece of every chunk. That is how a tensor
    looks that was split by an inner axis of size k before this one (FSDP over TP).
    """

    dim: int
    interleave: int = 1

    def __str__(self) -> str:
        return f"S({self.dim})" if self.interleave == 1 else f"S({self.dim}, /{self.interleave})"


Placement = Replicate | Split


class ForeignPlacement(Protocol):
    """A placement of another library, such as DTensor's Shard, Replicate or Partial."""

    def is_shard(self) -> bool: ...
    def is_replicate(self) -> bool: ...
    def is_partial(self) -> bool: ...


def placement_of(placement: Placement | ForeignPlacement) -> Placement:
    """The same placement in shardkeep's own words; Partial is refused."""
    if isinstance(placement, Replicate | Split):
        return placement
    # Not by `isinstance`: asked for each tensor of a state dict, it is 50 times as slow.
    if not hasattr(placement, "is_shard"):
        raise LayoutError(f"unknown placement {placement!r}; use Shard(dim) or Replicate()")
    # `is_shard` is False for a strided shard, which is told by its split factor.
    factor = getattr(placement, "split_factor", None)
    if factor is not None or placement.is_shard():
        return Split(int(getattr(placement, "dim")), int(factor or 1))  # noqa: B009
    if placement.is_replicate():
        return Replicate()
    if placement.is_partial():
        raise LayoutError(
            f"placement {placement} holds partial sums, which are no boxes of the tensor; "
            "reduce them first: tensor.redistribute(placements=[Replicate() or Shard(dim), ...])"
        )
    raise LayoutError(f"unknown placement {placement!r}; use Shard(dim) or Replicate()")

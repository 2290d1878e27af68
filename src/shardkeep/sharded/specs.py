"""How should a tensor be sharded? A spec turns a size into shards with owners."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import torch

from shardkeep.boxes import Box, ceil_split, find_overlaps, require_tiling
from shardkeep.errors import CoverError, InvalidError, UnsupportedError
from shardkeep.layouts import Layout, ListedLayout
from shardkeep.sharded.metadata import ShardedTensorMetadata, ShardMetadata, TensorProperties
from shardkeep.sharded.remote_device import RemoteDevice

if TYPE_CHECKING:
    from shardkeep.sharded.sharded_tensor import ShardedTensor


class ShardingSpec(ABC):
    """A rule that divides a tensor. Subclass it and give `build_metadata` for rules of your own."""

    @abstractmethod
    def build_metadata(
        self, tensor_sizes: Sequence[int], tensor_properties: TensorProperties
    ) -> ShardedTensorMetadata:
        """Every shard of a tensor of this size, with its owner."""

    def shard(
        self, tensor: torch.Tensor, src_rank: int = 0, process_group: object = None
    ) -> ShardedTensor:
        """`tensor` of `src_rank` (a rank of the group) cut and handed to the owners. SPMD."""
        from shardkeep.sharded.scatter import scatter

        return scatter(tensor, self, src_rank, process_group)


@dataclass(eq=True)
class ChunkShardingSpec(ShardingSpec):
    """One dim cut by the chunk rule, chunk i for placement i; trailing chunks may be empty."""

    dim: int
    placements: list[RemoteDevice]

    def __init__(self, dim: int, placements: Sequence[str | torch.device | RemoteDevice]) -> None:
        self.dim = _require_dim(dim)
        self.placements = [RemoteDevice(placement) for placement in placements]
        if not self.placements:
            raise InvalidError("a ChunkShardingSpec needs at least one placement")

    def __hash__(self) -> int:
        return hash((self.dim, tuple(self.placements)))

    def build_metadata(
        self, tensor_sizes: Sequence[int], tensor_properties: TensorProperties
    ) -> ShardedTensorMetadata:
        size = tuple(tensor_sizes)
        if not -len(size) <= self.dim < len(size):
            raise InvalidError(f"dim {self.dim} is not a dim of a tensor of size {list(size)}")
        dim = self.dim % len(size)
        shards: list[ShardMetadata] = []
        spans = ceil_split(size[dim], len(self.placements))
        for (start, stop), placement in zip(spans, self.placements, strict=True):
            offsets = [start if d == dim else 0 for d in range(len(size))]
            sizes = [stop - start if d == dim else side for d, side in enumerate(size)]
            shards.append(ShardMetadata(offsets, sizes, placement))
        return ShardedTensorMetadata(shards, torch.Size(size), tensor_properties)


def _require_dim(dim: object) -> int:
    if isinstance(dim, str):
        raise UnsupportedError(f"dims are given by number; named dim {dim!r} is not supported")
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise InvalidError(f"a sharding dim is an int, got {dim!r}")
    return dim


@dataclass(eq=True)
class EnumerableShardingSpec(ShardingSpec):
    """Shards written out one by one; they must not overlap, and must cover what they shard."""

    shards: list[ShardMetadata] = field(default_factory=list[ShardMetadata])

    def __post_init__(self) -> None:
        self.shards = list(self.shards)
        if not self.shards:
            raise InvalidError("an EnumerableShardingSpec needs at least one shard")
        if len({len(shard.shard_offsets) for shard in self.shards}) > 1:
            raise InvalidError("the shards of a spec must all have the same number of dims")
        require_no_overlap(self.shards)

    def __hash__(self) -> int:
        return hash(tuple(self.shards))

    def build_metadata(
        self, tensor_sizes: Sequence[int], tensor_properties: TensorProperties
    ) -> ShardedTensorMetadata:
        size = tuple(tensor_sizes)
        require_tiling(size, [shard.box for shard in self.shards], what="the sharding spec")
        return ShardedTensorMetadata(list(self.shards), torch.Size(size), tensor_properties)


def require_no_overlap(shards: Sequence[ShardMetadata]) -> None:
    """Raise CoverError naming the first two shards that share cells."""
    for first, second, shared in find_overlaps([shard.box for shard in shards], limit=1):
        raise CoverError(
            f"shards {first} ({shards[first]}) and {second} ({shards[second]}) overlap at {shared}"
        )


def infer_sharding_spec(shards: Sequence[ShardMetadata]) -> ShardingSpec:
    """The chunk spec that makes these shards if there is one, else an enumerable spec."""
    chunked = _as_chunks(shards)
    return chunked if chunked is not None else EnumerableShardingSpec(list(shards))


def _as_chunks(shards: Sequence[ShardMetadata]) -> ChunkShardingSpec | None:
    dims = {dim for shard in shards for dim, start in enumerate(shard.shard_offsets) if start}
    if len(dims) != 1 or any(shard.placement is None for shard in shards):
        return None
    dim = dims.pop()
    ordered = sorted(shards, key=lambda shard: (shard.box.start[dim], shard.box.stop[dim]))
    spec = ChunkShardingSpec(dim, [cast("RemoteDevice", shard.placement) for shard in ordered])
    size = [
        ordered[-1].box.stop[d] if d == dim else side
        for d, side in enumerate(ordered[0].shard_sizes)
    ]
    made = spec.build_metadata(size, TensorProperties()).shards_metadata
    return spec if made == ordered else None


def spec_of_layout(layout: Layout, device: torch.device) -> EnumerableShardingSpec:
    """A spec with the layout's boxes, all on this device. Layouts with replicas are refused."""
    if layout.has_replicas:
        raise InvalidError(
            "a sharded tensor holds each cell once, this layout holds some on several ranks:\n"
            + layout.describe()
        )
    shards = [
        ShardMetadata.of_box(box, RemoteDevice.on_rank(rank, device))
        for rank in layout.ranks
        for box in _buffer_boxes(layout, rank)
    ]
    return EnumerableShardingSpec(shards or [_empty_shard(layout, device)])


def _buffer_boxes(layout: Layout, rank: int) -> list[Box]:
    """A box for each local tensor of a listed layout, empty ones too; else each part's box."""
    parts = layout.parts_of(rank)
    boxes = {part.buffer: part.box for part in parts}
    if not isinstance(layout, ListedLayout) or len(boxes) < len(parts):
        return [part.box for part in parts]
    shapes = enumerate(layout.buffer_shapes_of(rank))
    return [boxes.get(number) or Box.whole(shape) for number, shape in shapes]


def _empty_shard(layout: Layout, device: torch.device) -> ShardMetadata:
    # A tensor without cells still needs an owner for its (empty) memory.
    owner = RemoteDevice.on_rank(layout.ranks[0], device)
    return ShardMetadata.of_box(Box.whole(layout.shape), owner)

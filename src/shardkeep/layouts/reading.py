"""What is the layout of this tensor? Told by what the object offers, so torch stays unimported."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, cast
from weakref import WeakKeyDictionary

from shardkeep.boxes import Box
from shardkeep.errors import LayoutError
from shardkeep.layouts.layout import Layout
from shardkeep.layouts.mesh import Mesh
from shardkeep.layouts.placements import ForeignPlacement


class _RankArray(Protocol):
    def flatten(self) -> _RankArray: ...
    def tolist(self) -> list[int]: ...


class DeviceMeshLike(Protocol):
    """An arrangement of global ranks, as torch's DeviceMesh."""

    @property
    def mesh(self) -> _RankArray: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


class OnMesh(Protocol):
    """A tensor that is placed on a mesh, as DTensor."""

    @property
    def device_mesh(self) -> DeviceMeshLike: ...
    @property
    def placements(self) -> Sequence[ForeignPlacement]: ...
    @property
    def shape(self) -> Sequence[int]: ...


class _Owner(Protocol):
    def rank(self) -> int | None: ...


class ShardRecord(Protocol):
    """Offsets, sizes and owner of a shard."""

    @property
    def shard_offsets(self) -> Sequence[int]: ...
    @property
    def shard_sizes(self) -> Sequence[int]: ...
    @property
    def placement(self) -> _Owner | None: ...


class _ShardTable(Protocol):
    @property
    def shards_metadata(self) -> Sequence[ShardRecord]: ...
    @property
    def size(self) -> Sequence[int]: ...


class InShards(Protocol):
    """A tensor that lists the shards of all ranks, as ShardedTensor."""

    def metadata(self) -> _ShardTable: ...
    def local_shards(self) -> Sequence[object]: ...


_meshes: WeakKeyDictionary[DeviceMeshLike, Mesh] = WeakKeyDictionary()


def mesh_of(device_mesh: DeviceMeshLike) -> Mesh:
    """The ranks and shape of a DeviceMesh."""
    mesh = _meshes.get(device_mesh)
    if mesh is None:
        ranks = tuple(device_mesh.mesh.flatten().tolist())
        mesh = _meshes[device_mesh] = Mesh(tuple(device_mesh.shape), ranks)
    return mesh


def layout_of(tensor: object, ranks: tuple[int, ...]) -> Layout:
    """The layout of `tensor`; one that is not distributed is whole on each of `ranks`."""
    # Not by `isinstance`: asked for each tensor of a state dict, it is 50 times as slow.
    if hasattr(tensor, "device_mesh"):
        placed = cast("OnMesh", tensor)
        return Layout.on_mesh(placed.shape, mesh_of(placed.device_mesh), placed.placements)
    if hasattr(tensor, "local_shards"):
        table = cast("InShards", tensor).metadata()
        return shards_layout(table.size, table.shards_metadata)
    shape = getattr(tensor, "shape", None)
    if shape is None:
        raise LayoutError(f"a {type(tensor).__name__} has no shape, hence no layout")
    return Layout.replicated(cast("Iterable[int]", shape), ranks)


def shards_layout(size: Sequence[int], shards: Sequence[ShardRecord]) -> Layout:
    """The layout of listed shards, each owned by the rank that its placement names."""
    shape = tuple(size)
    return Layout.listed(shape, [(_owner(shard), _box(shard, shape)) for shard in shards])


def _owner(shard: ShardRecord) -> int:
    rank = shard.placement.rank() if shard.placement is not None else None
    if rank is None:
        raise LayoutError(
            f"shard at {list(shard.shard_offsets)} names no owning rank; "
            'give it a placement such as "rank:0/cpu"'
        )
    return rank


def _box(shard: ShardRecord, shape: tuple[int, ...]) -> Box:
    if 0 not in shard.shard_sizes:
        return Box.sized(shard.shard_offsets, shard.shard_sizes)
    # Empty trailing chunks of torch's sharded tensors start past the end; they hold nothing.
    start = [min(offset, side) for offset, side in zip(shard.shard_offsets, shape, strict=True)]
    return Box.sized(start, shard.shard_sizes)

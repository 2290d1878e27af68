"""How do sharded tensors and DTensors turn into each other?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

import torch

from shardkeep.layouts import Layout
from shardkeep.layouts.reading import mesh_of
from shardkeep.ranks import RankGroup, agree_equal
from shardkeep.sharded.checks import require_owners
from shardkeep.sharded.gathering import move
from shardkeep.sharded.metadata import ShardedTensorMetadata, TensorProperties
from shardkeep.sharded.shard import Shard
from shardkeep.sharded.sharded_tensor import ShardedTensor
from shardkeep.sharded.specs import spec_of_layout

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Placement

T = TypeVar("T", bound=ShardedTensor)


def from_dtensor(cls: type[T], tensor: DTensor, process_group: object) -> T:
    """The DTensor's boxes as shards; contiguous ones share its memory."""
    group = RankGroup.of(process_group)
    layout = Layout.of(tensor)
    local = tensor.to_local().detach()
    spec = spec_of_layout(layout, local.device)
    metadata = ShardedTensorMetadata(spec.shards, tensor.size(), TensorProperties(tensor.dtype))
    require_owners(metadata, group)
    mine = [record for record in spec.shards if record.rank == group.me]
    parts = layout.parts_of(group.me)
    if parts:
        pieces = [local[part.place.slices()].contiguous() for part in parts]
    else:
        # A tensor without cells has one record, which is not cut as the DTensor is.
        pieces = [local.new_empty(record.shard_sizes) for record in mine]
    shards = [Shard(piece, record) for piece, record in zip(pieces, mine, strict=True)]
    made = cls.in_group(metadata, shards, spec, process_group, local.device)
    made.requires_grad_(tensor.requires_grad)
    return made


def to_dtensor(
    tensor: ShardedTensor, device_mesh: DeviceMesh, placements: Sequence[Placement]
) -> DTensor:
    """The tensor's cells laid out on the mesh; equal boxes keep their memory."""
    from torch.distributed.tensor import DTensor

    what = "ShardedTensor.to_dtensor"
    mesh = mesh_of(device_mesh)

    def check() -> object:
        Layout.on_mesh(tensor.shape, mesh, placements)
        return [mesh.shape, mesh.ranks, [str(placement) for placement in placements]]

    agree_equal(tensor.rank_group, what, check)
    target = Layout.on_mesh(tensor.shape, mesh, placements)
    local = _local_memory(tensor, target, tensor.rank_group.me)
    move(tensor, target, [local], what)
    made = DTensor.from_local(
        local,
        device_mesh,
        placements,
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )
    made.requires_grad_(tensor.requires_grad)
    return made


def _local_memory(tensor: ShardedTensor, target: Layout, me: int) -> torch.Tensor:
    """My shard's own memory if it holds just what the target wants of me, else fresh memory."""
    shards, parts = tensor.local_shards(), target.parts_of(me)
    if len(shards) == len(parts) == 1 and shards[0].metadata.box == parts[0].box:
        return shards[0].tensor.detach()
    shapes = target.buffer_shapes_of(me)
    return torch.empty(shapes[0] if shapes else (0,), dtype=tensor.dtype, device=tensor.device)

"""`Layout.of` each kind of tensor, compared with the memory that the tensor itself holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed._shard import sharded_tensor as torch_sharded
from torch.distributed._shard.metadata import ShardMetadata as TorchShardMetadata
from torch.distributed._shard.sharding_spec import ChunkShardingSpec as TorchChunkShardingSpec
from torch.distributed._shard.sharding_spec.api import (
    EnumerableShardingSpec as TorchEnumerableShardingSpec,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

from shardkeep.boxes import Box
from shardkeep.errors import LayoutError
from shardkeep.layouts import Layout, Mesh, Split
from shardkeep.layouts.reading import mesh_of, shards_layout
from shardkeep.sharded import ChunkShardingSpec, ShardMetadata, empty


@contextmanager
def rank_of(rank: int, size: int) -> Iterator[None]:
    """Be one rank of a world in which nobody waits for the others."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def owners(*ranks: int) -> list[str]:
    return [f"rank:{rank}/cpu" for rank in ranks]


def require_same_memory(tensor: object, local: torch.Tensor, full: torch.Tensor) -> None:
    """The parts that the layout names are what the local tensor holds, cell by cell."""
    layout, rank = Layout.of(tensor), dist.get_rank()
    (shape,) = layout.buffer_shapes_of(rank)
    buffer = np.zeros(shape, int)
    for part in layout.parts_of(rank):
        buffer[part.place.slices()] = full.numpy()[part.box.slices()]
    assert buffer.tolist() == local.tolist()


@pytest.mark.parametrize("shape", [(8, 6), (5, 3), (3, 0), (1, 7)])
@pytest.mark.parametrize(
    "placements",
    [
        (Shard(0), Replicate()),
        (Shard(1), Shard(0)),
        (Shard(0), Shard(0)),
        (_StridedShard(0, split_factor=2), Shard(0)),
        (Shard(0), _StridedShard(0, split_factor=3)),
        (_StridedShard(1, split_factor=2), _StridedShard(1, split_factor=3)),
    ],
    ids=str,
)
def test_a_dtensor_holds_the_boxes_that_its_layout_names(shape, placements):
    full = torch.arange(1, 1 + torch.Size(shape).numel()).reshape(shape)
    for rank in range(6):
        with rank_of(rank, 6):
            mesh = init_device_mesh("cpu", (3, 2))
            local, coordinate = full, mesh.get_coordinate() or []
            for axis, placement in enumerate(placements):
                if not isinstance(placement, Replicate):
                    pieces, _ = placement._split_tensor(local, mesh.size(axis), with_padding=False)
                    local = pieces[coordinate[axis]]
            tensor = DTensor.from_local(
                local, mesh, placements, run_check=False, shape=full.shape, stride=full.stride()
            )
            require_same_memory(tensor, tensor.to_local(), full)


def test_distribute_tensor_agrees():
    full = torch.arange(1, 36).reshape(7, 5)
    for rank in range(4):
        with rank_of(rank, 4):
            mesh = init_device_mesh("cpu", (2, 2))
            tensor = distribute_tensor(full, mesh, [Shard(1), Shard(0)], src_data_rank=None)
            require_same_memory(tensor, tensor.to_local(), full)


def test_a_partial_dtensor_is_refused_with_the_way_out():
    with rank_of(0, 2):
        mesh = init_device_mesh("cpu", (2,))
        tensor = DTensor.from_local(torch.ones(3), mesh, [Partial()], run_check=False)

        with pytest.raises(LayoutError, match=r"partial sums.*tensor\.redistribute"):
            Layout.of(tensor)


def test_a_submesh_names_global_ranks():
    with rank_of(5, 8):
        mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))["tp"]
        tensor = DTensor.from_local(torch.ones(2), mesh, [Shard(0)], run_check=False)

        assert Layout.of(tensor) == Layout.chunked((8,), 0, [4, 5, 6, 7])
        assert mesh_of(mesh) == Mesh.line([4, 5, 6, 7])


def test_a_plain_tensor_is_whole_on_the_given_ranks():
    tensor = torch.zeros(2, 3)

    assert Layout.of(tensor) == Layout.replicated((2, 3), [0])
    assert Layout.of(tensor, ranks=iter([2, 3])) == Layout.replicated((2, 3), [2, 3])
    assert Layout.of(torch.tensor(1.0)).boxes_of(0) == (Box((), ()),)


def test_arrays_have_layouts_too():
    assert Layout.of(np.zeros((2, 3))) == Layout.replicated((2, 3), [0])


def test_what_has_no_shape_has_no_layout():
    with pytest.raises(LayoutError, match="a dict has no shape, hence no layout"):
        Layout.of({})


def test_our_sharded_tensor_lists_the_shards_of_all_ranks():
    with rank_of(1, 4):
        tensor = empty(ChunkShardingSpec(0, owners(3, 1, 1)), 5, 2)

    layout = Layout.of(tensor)
    assert layout == tensor.sharded_layout
    assert layout.describe().splitlines() == [
        "rank 1: [2:4, 0:2], [4:5, 0:2]",
        "rank 3: [0:2, 0:2]",
    ]


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_pytorch_sharded_tensor_is_read_though_its_empty_chunk_lies_past_the_end():
    with rank_of(1, 4):
        spec = TorchChunkShardingSpec(0, owners(0, 1, 2, 3))  # type: ignore[arg-type]
        tensor = torch_sharded.empty(spec, 5, 2)
        assert tensor.metadata().shards_metadata[3].shard_offsets == [6, 0]

        assert Layout.of(tensor).describe().splitlines() == [
            "rank 0: [0:2, 0:2]",
            "rank 1: [2:4, 0:2]",
            "rank 2: [4:5, 0:2]",
            "rank 3: nothing",
        ]


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_pytorch_sharded_tensor_of_listed_shards_is_read():
    with rank_of(0, 2):
        shards = [
            TorchShardMetadata([0, 0], [2, 4], "rank:1/cpu"),
            TorchShardMetadata([2, 0], [1, 4], "rank:0/cpu"),
        ]
        tensor = torch_sharded.empty(TorchEnumerableShardingSpec(shards), 3, 4)

        assert Layout.of(tensor) == Layout.listed(
            (3, 4), [(0, Box((2, 0), (3, 4))), (1, Box((0, 0), (2, 4)))]
        )


@pytest.mark.parametrize("placement", [None, "cpu", "worker/cpu"])
def test_a_shard_without_an_owning_rank_is_refused(placement: str | None):
    shard = ShardMetadata([0], [4], placement)

    with pytest.raises(LayoutError, match=r"shard at \[0\] names no owning rank.*rank:0/cpu"):
        shards_layout([4], [shard])


def test_split_of_a_foreign_mesh_is_the_split_of_our_mesh():
    with rank_of(0, 4):
        mesh = init_device_mesh("cpu", (2, 2))
        tensor = DTensor.from_local(
            torch.ones(2, 2), mesh, [_StridedShard(0, split_factor=2), Shard(0)], run_check=False
        )

        assert Layout.of(tensor) == Layout.on_mesh(
            (8, 2), Mesh((2, 2), (0, 1, 2, 3)), [Split(0, 2), Split(0)]
        )

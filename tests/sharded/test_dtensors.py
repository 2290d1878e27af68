"""Sharded tensors and DTensors turn into each other.

`from_dtensor` needs no other rank, so each rank is tried alone; `to_dtensor` on one process here,
on several in tests/distributed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

from shardkeep.boxes import Box
from shardkeep.errors import InvalidError, LayoutError
from shardkeep.layouts import Layout
from shardkeep.sharded import ShardedTensor, zeros
from shardkeep.testing.layout_strategies import distinct_values
from tests.sharded.making import chunks, listed, pieces, sharded

FULL = distinct_values((7, 4))


@contextmanager
def rank_of(rank: int, size: int) -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.fixture
def one_process() -> Iterator[DeviceMesh]:
    store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def dtensor(full: torch.Tensor, mesh: DeviceMesh, placements: list) -> Any:
    """What this rank holds of `full`, split by DTensor's own code."""
    local, coordinate = full, mesh.get_coordinate() or []
    for axis, placement in enumerate(placements):
        if isinstance(placement, Shard | _StridedShard):
            parts, _ = placement._split_tensor(local, mesh.size(axis), with_padding=False)
            local = parts[coordinate[axis]]
    return DTensor.from_local(
        local, mesh, placements, run_check=False, shape=full.shape, stride=full.stride()
    )


@pytest.mark.parametrize(
    "full", [FULL, FULL[:3].contiguous(), torch.zeros(0, 4)], ids=["7", "3", "0"]
)
@pytest.mark.parametrize(
    "placements",
    [
        [Shard(0), Shard(1)],
        [Shard(0), Shard(0)],
        [_StridedShard(0, split_factor=2), Shard(0)],
        [_StridedShard(0, split_factor=3), Shard(1)],
    ],
    ids=str,
)
def test_a_dtensor_becomes_shards_of_the_same_cells(full: torch.Tensor, placements: list):
    held = torch.zeros(full.shape)
    for rank in range(4):
        with rank_of(rank, 4):
            tensor = dtensor(full, init_device_mesh("cpu", (2, 2)), placements)
            made = ShardedTensor.from_dtensor(tensor)
            assert made.shape == full.shape
            assert made.sharded_layout.boxes_of(rank) == Layout.of(tensor).boxes_of(rank)
            for shard in made.local_shards():
                held[shard.metadata.box.slices()] += shard.tensor
    assert torch.equal(held, full)


@pytest.mark.parametrize("size", [(0, 4), (4, 0)])
def test_a_dtensor_without_cells_becomes_a_sharded_tensor(size: tuple[int, ...]):
    """Its one shard is whole, although the DTensor is cut along a dim that has cells."""
    for rank in range(2):
        with rank_of(rank, 2):
            mesh = init_device_mesh("cpu", (2,))
            for dim in (0, 1):
                tensor = dtensor(torch.zeros(size), mesh, [Shard(dim)])
                made = ShardedTensor.from_dtensor(tensor)
                assert [list(piece.shape) for piece in pieces(made)] == [list(size)] * (1 - rank)


def test_boxes_in_one_piece_share_memory_with_the_dtensor():
    with rank_of(1, 2):
        tensor = dtensor(FULL, init_device_mesh("cpu", (2,)), [Shard(0)]).requires_grad_()
        made = ShardedTensor.from_dtensor(tensor)

    assert pieces(made)[0].data_ptr() == tensor.to_local().data_ptr()
    assert made.requires_grad
    assert made.dtype == tensor.dtype


def test_replicas_are_refused():
    with rank_of(0, 2):
        tensor = dtensor(FULL, init_device_mesh("cpu", (2,)), [Replicate()])
        with pytest.raises(InvalidError, match="a sharded tensor holds each cell once"):
            ShardedTensor.from_dtensor(tensor)


def test_partial_sums_are_refused_with_the_way_out():
    with rank_of(0, 2):
        mesh = init_device_mesh("cpu", (2,))
        tensor = DTensor.from_local(torch.ones(3), mesh, [Partial()], run_check=False)
        with pytest.raises(LayoutError, match=r"partial sums.*tensor\.redistribute"):
            ShardedTensor.from_dtensor(tensor)


def test_a_mesh_outside_the_group_is_refused():
    with rank_of(0, 4):
        group = dist.new_group([0, 1])
        tensor = dtensor(FULL, init_device_mesh("cpu", (4,)), [Shard(0)])
        with pytest.raises(
            InvalidError, match=r"owned by rank 2, but the group has ranks \[0, 1\]"
        ):
            ShardedTensor.from_dtensor(tensor, process_group=group)


def test_equal_boxes_keep_their_memory_on_the_way_to_a_dtensor(one_process: DeviceMesh):
    tensor = sharded(FULL, chunks([0])).requires_grad_()

    made = tensor.to_dtensor(one_process, [Shard(0)])

    assert isinstance(made, DTensor)
    assert made.to_local().data_ptr() == pieces(tensor)[0].data_ptr()
    assert made.requires_grad
    assert made.shape == FULL.shape
    assert made.stride() == FULL.stride()
    assert torch.equal(made.full_tensor(), FULL)


@pytest.mark.parametrize(
    "placements", [[Shard(0)], [Shard(1)], [Replicate()], [_StridedShard(0, split_factor=3)]]
)
def test_any_tiling_becomes_a_dtensor(one_process: DeviceMesh, placements: list):
    boxes = [(0, Box((3, 0), (7, 4))), (0, Box((0, 0), (3, 1))), (0, Box((0, 1), (3, 4)))]

    made = sharded(FULL, listed(boxes)).to_dtensor(one_process, placements)

    assert made.placements == tuple(placements)
    assert torch.equal(made.to_local(), FULL)


def test_there_and_back(one_process: DeviceMesh):
    tensor = ShardedTensor.from_dtensor(dtensor(FULL, one_process, [Shard(0)]))

    assert torch.equal(tensor.to_dtensor(one_process, [Shard(0)]).full_tensor(), FULL)


@pytest.mark.parametrize("size", [(), (0, 3)])
def test_0_dim_and_empty_tensors_become_dtensors(one_process: DeviceMesh, size: tuple[int, ...]):
    made = zeros(listed([(0, Box.whole(size))]), size).to_dtensor(one_process, [Replicate()])

    assert made.shape == size


def test_a_dtensor_of_partial_sums_cannot_be_asked_for(one_process: DeviceMesh):
    with pytest.raises(LayoutError, match="partial sums"):
        sharded(FULL, chunks([0])).to_dtensor(one_process, [Partial()])


def test_the_environment_is_left_alone():
    assert not dist.is_initialized()
    assert "WORLD_SIZE" not in os.environ

"""A DTensor's layout by arithmetic, beside what DTensor itself holds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

from shardkeep import Box, Layout
from tests.distributed.tensors import assert_same, distinct


def parts_are_what_dtensor_holds(rank: int, world: int, *, mesh_shape: list[int]) -> int:
    """The number of compared (shape, placements)."""
    mesh = init_device_mesh("cpu", tuple(mesh_shape))
    compared = 0
    for shape in SHAPES:
        for placements in _placements(len(shape), mesh_shape):
            _compare(shape, mesh, placements, rank)
            compared += 1
    return compared


SHAPES = ((0,), (1,), (3,), (5,), (7,), (8,), (12,), (17,), (5, 6), (3, 8, 2), (7, 0))


def _placements(ndim: int, mesh_shape: Sequence[int]) -> Iterator[tuple[Placement, ...]]:
    """Every combination of placements, several axes on one dim and all split factors included."""
    factors = (2, 3, 4)
    on_axis: list[Placement] = [Replicate()]
    for dim in range(ndim):
        on_axis.append(Shard(dim))
        on_axis += [_StridedShard(dim, split_factor=factor) for factor in factors]
    if ndim > 2:
        # Three dims add no new rule: only plain shards and one strided.
        on_axis = [
            Replicate(),
            *(Shard(dim) for dim in range(ndim)),
            _StridedShard(1, split_factor=2),
        ]
    yield from itertools.product(on_axis, repeat=len(mesh_shape))


def _compare(
    shape: Sequence[int], mesh: DeviceMesh, placements: Sequence[Placement], rank: int
) -> None:
    full = distinct(shape, torch.int64)
    tensor = distribute_tensor(full, mesh, placements, src_data_rank=None)
    local = tensor.to_local()
    layout = Layout.of(tensor)
    what = f"{tuple(shape)} {placements}"
    assert layout.buffer_shapes_of(rank) == (tuple(local.shape),), what
    covered = torch.zeros(local.shape, dtype=torch.int64)
    for part in layout.parts_of(rank):
        assert (part.rank, part.buffer) == (rank, 0), what
        try:
            assert_same(local[part.place.slices()], full[part.box.slices()])
        except AssertionError as error:
            raise AssertionError(f"{what}: {part}") from error
        covered[part.place.slices()] += 1
    assert bool((covered == 1).all()), f"{what}: not each cell in one part: {covered}"
    layout.require_complete(what)


def ranks_outside_the_mesh_hold_nothing(rank: int, world: int) -> None:
    full = distinct((5, 2), torch.int64)
    mesh = DeviceMesh("cpu", [3, 1])
    tensor = distribute_tensor(full, mesh, [Shard(0)], src_data_rank=None)

    layout = Layout.of(tensor)

    assert layout.ranks == (1, 3)
    assert layout.boxes_of(3) == (Box((0, 0), (3, 2)),)
    assert layout.boxes_of(1) == (Box((3, 0), (5, 2)),)
    assert layout.boxes_of(0) == layout.boxes_of(2) == ()
    if rank in layout.ranks:
        (box,) = layout.boxes_of(rank)
        assert_same(tensor.to_local(), full[box.slices()])

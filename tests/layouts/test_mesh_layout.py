"""What a rank of a mesh holds: compared with a NumPy oracle, and with what DTensor itself holds."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.distributed.tensor import Replicate as TorchReplicate, Shard
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _StridedShard

from shardkeep.boxes import Box, check_tiling
from shardkeep.errors import InvalidError, LayoutError
from shardkeep.layouts import Layout, Mesh, MeshLayout, Replicate, Split
from shardkeep.testing.example_counts import examples
from shardkeep.testing.layout_strategies import held_by, layouts, mesh_layouts, shapes

RANKS = (2, 3, 5, 7, 8, 9)


def _filled(layout: Layout, rank: int, array: np.ndarray) -> list[np.ndarray]:
    """A rank's buffers, filled part by part."""
    buffers = [np.zeros(shape, int) for shape in layout.buffer_shapes_of(rank)]
    for part in layout.parts_of(rank):
        assert part.rank == rank
        assert part.box.shape == part.place.shape
        assert not part.box.is_empty
        place = part.place.slices()
        assert not buffers[part.buffer][place].any(), "a place is held twice"
        buffers[part.buffer][place] = array[part.box.slices()]
    assert all(buffer.all() for buffer in buffers), "a place is held by no part"
    return buffers


@settings(max_examples=examples(150), deadline=None)
@given(data=st.data(), shape=shapes())
def test_parts_put_each_cell_where_the_oracle_has_it(data: st.DataObject, shape: tuple[int, ...]):
    array = np.arange(1, math.prod(shape) + 1).reshape(shape)
    layout = data.draw(mesh_layouts(shape, RANKS))

    for rank in range(10):
        expected = held_by(layout, rank, array)
        assert [b.tolist() for b in _filled(layout, rank, array)] == [e.tolist() for e in expected]


@settings(max_examples=examples(100), deadline=None)
@given(data=st.data(), shape=shapes())
def test_distinct_boxes_of_any_layout_tile_the_shape(data: st.DataObject, shape: tuple[int, ...]):
    layout = data.draw(layouts(shape, RANKS))

    layout.require_complete()
    assert check_tiling(shape, list(layout.holders)).is_tiling


@settings(max_examples=examples(100), deadline=None)
@given(data=st.data(), shape=shapes())
def test_layouts_without_replicas_hold_each_cell_once(data: st.DataObject, shape: tuple[int, ...]):
    layout = data.draw(layouts(shape, RANKS, replicas=False))

    assert not layout.has_replicas
    assert check_tiling(shape, [part.box for part in layout.parts()]).is_tiling


@st.composite
def torch_placements(draw: st.DrawFn, ndim: int, axes: int) -> list[Any]:
    dims = st.integers(0, ndim - 1)
    strided = st.builds(lambda dim, k: _StridedShard(dim, split_factor=k), dims, st.integers(1, 4))
    kinds = st.one_of(st.builds(Shard, dims), strided, st.builds(TorchReplicate))
    return [draw(kinds) for _ in range(axes)]


def _dtensor_local(full: torch.Tensor, sides: tuple[int, ...], placements, coordinate):
    """What a coordinate of the mesh gets when DTensor's own code splits the tensor."""
    local = full
    for side, placement, place in zip(sides, placements, coordinate, strict=True):
        if not isinstance(placement, TorchReplicate):
            pieces, _ = placement._split_tensor(local, side, with_padding=False, contiguous=False)
            local = pieces[place]
    return local


@settings(max_examples=examples(120), deadline=None)
@given(data=st.data(), shape=shapes().filter(len))
def test_a_mesh_holds_what_dtensor_holds_in_any_order_of_placements(
    data: st.DataObject, shape: tuple[int, ...]
):
    sides = data.draw(st.sampled_from([(2,), (3,), (5,), (2, 2), (3, 2), (2, 4), (2, 3, 2)]))
    placements = data.draw(torch_placements(len(shape), len(sides)))
    mesh = Mesh(sides, tuple(range(math.prod(sides))))
    layout = Layout.on_mesh(shape, mesh, placements)
    full = torch.arange(1, math.prod(shape) + 1).reshape(shape)

    for rank, coordinate in enumerate(product(*map(range, sides))):
        expected = _dtensor_local(full, sides, placements, coordinate)
        (mine,) = _filled(layout, rank, full.numpy())
        assert mine.tolist() == expected.tolist()
        sizes, offsets = _compute_local_shape_and_global_offset(
            shape, sides, list(coordinate), placements
        )
        assert layout.buffer_shapes_of(rank) == (tuple(sizes),)
        if 0 not in sizes:
            assert min(part.box.start for part in layout.parts_of(rank)) == tuple(offsets)


def test_fsdp_over_tp_interleaves():
    """FSDP over a tensor that TP has cut: rows 0:2 and 4:6 belong to dp coordinate 0."""
    layout = Layout.on_mesh((8, 3), Mesh((2, 2), (0, 1, 2, 3)), [Split(0, 2), Split(0)])

    assert [str(box) for rank in range(4) for box in layout.boxes_of(rank)] == [
        "[0:2, 0:3]",
        "[4:6, 0:3]",
        "[2:4, 0:3]",
        "[6:8, 0:3]",
    ]


def test_an_interleaved_split_by_itself_gives_several_boxes_in_one_buffer():
    layout = Layout.on_mesh((8,), Mesh.line([0, 1]), [Split(0, 2)])

    assert layout.boxes_of(1) == (Box((2,), (4,)), Box((6,), (8,)))
    assert [part.place for part in layout.parts_of(1)] == [Box((0,), (2,)), Box((2,), (4,))]
    assert layout.buffer_shapes_of(1) == ((4,),)


def test_5_rows_over_4_ranks_leave_one_empty():
    layout = Layout.chunked((5, 2), 0, [0, 1, 2, 3])

    assert layout.describe().splitlines() == [
        "rank 0: [0:2, 0:2]",
        "rank 1: [2:4, 0:2]",
        "rank 2: [4:5, 0:2]",
        "rank 3: nothing",
    ]
    assert layout.buffer_shapes_of(3) == ((0, 2),)


def test_a_0_dim_tensor_is_replicated_on_a_mesh():
    layout = Layout.on_mesh((), Mesh((2, 2), (0, 1, 2, 3)), [Replicate(), Replicate()])

    assert list(layout.holders) == [Box((), ())]
    assert len(layout.holders[Box((), ())]) == 4


def test_a_rank_outside_the_mesh_holds_nothing():
    layout = Layout.chunked((4,), 0, [1, 2])

    assert layout.parts_of(0) == ()
    assert layout.buffer_shapes_of(0) == ()
    assert layout.ranks == (1, 2)


def test_dims_count_from_the_end_too():
    mesh = Mesh.line([0, 1])

    assert Layout.on_mesh((4, 6), mesh, [Split(-1)]) == Layout.on_mesh((4, 6), mesh, [Split(1)])


def test_equal_mesh_layouts_are_one_key():
    made = {Layout.chunked((4, 6), dim, [0, 1]) for dim in (0, 0, -2, 1)}

    assert len(made) == 2


def test_a_mesh_layout_answers_at_once_for_very_many_ranks():
    layout = Layout.on_mesh(
        (1 << 20, 1 << 12), Mesh((256, 64), tuple(range(1 << 14))), [Split(0), Split(1)]
    )

    assert layout.boxes_of((1 << 14) - 1) == (
        Box(((1 << 20) - (1 << 12), (1 << 12) - (1 << 6)), (1 << 20, 1 << 12)),
    )


@pytest.mark.parametrize("dim", [2, -3])
def test_a_split_of_a_dim_that_is_not_there_is_refused(dim: int):
    with pytest.raises(LayoutError, match=r"splits a dim that shape \(4, 4\) lacks"):
        Layout.on_mesh((4, 4), Mesh.line([0, 1]), [Split(dim)])


def test_each_axis_needs_a_placement():
    with pytest.raises(LayoutError, match="a mesh of 2 axes needs as many placements, got 1"):
        MeshLayout((4,), Mesh((1, 1), (0,)), (Split(0),))


def test_an_interleave_below_1_is_refused():
    with pytest.raises(InvalidError, match="cannot split into 0 parts"):
        Layout.on_mesh((4,), Mesh.line([0]), [Split(0, 0)]).parts_of(0)

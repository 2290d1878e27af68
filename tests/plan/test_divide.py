"""Do the chunks that ranks write tile the tensor, and does everyone agree who writes them?"""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, strategies as st
from hypothesis.strategies import DrawFn

from shardkeep.boxes import Box
from shardkeep.layouts import Layout, Mesh, MeshLayout, Replicate, Split
from shardkeep.manifest import Runs, SplitGrid
from shardkeep.plan.assign import Tensor, plan_divisions
from shardkeep.plan.divide import Division, RegularDivision, regular_cuts
from shardkeep.testing.layout_strategies import held_by, layouts, mesh_layouts, shapes

RANKS = range(6)


@st.composite
def divided(draw: DrawFn) -> tuple[Layout, Division | None]:
    shape = draw(shapes())
    layout = draw(layouts(shape, RANKS))
    itemsize = draw(st.sampled_from([1, 4]))
    count = draw(st.integers(1, 3))
    return layout, plan_divisions({"t": Tensor(layout, itemsize)}, file_count=count).get("t")


@given(divided())
def test_every_cell_is_written_once_from_where_it_lies(
    made: tuple[Layout, Division | None],
) -> None:
    layout, division = made
    whole = np.arange(1, math.prod(layout.shape) + 1).reshape(layout.shape)
    if division is None:
        assert not whole.size
        return
    written = np.zeros_like(whole)
    for rank in RANKS:
        buffers = held_by(layout, rank, whole)
        for chunk in division.chunks_of(rank):
            assert not chunk.box.is_empty
            found = buffers[chunk.buffer][chunk.place.slices()]
            np.testing.assert_array_equal(found, whole[chunk.box.slices()])
            written[chunk.box.slices()] += 1
    assert (written == 1).all()


@given(divided())
def test_the_writers_of_a_grid_are_those_who_write(made: tuple[Layout, Division | None]) -> None:
    _, division = made
    if not isinstance(division, RegularDivision):
        return
    ranks, numbers = division.writers()
    cells = SplitGrid(division.splits, Runs.of(range(len(ranks))))
    listed = {
        box: (int(ranks[cell]), int(numbers[cell]))
        for box, cell in cells.chunks(division.layout.shape)
    }
    written = {
        chunk.box: (rank, chunk.number) for rank in RANKS for chunk in division.chunks_of(rank)
    }
    assert listed == written


@given(st.data())
def test_plain_splits_always_make_a_grid(data: st.DataObject) -> None:
    layout = data.draw(mesh_layouts(data.draw(shapes()), RANKS))
    assert isinstance(layout, MeshLayout)
    plain = all(not isinstance(p, Split) or p.interleave == 1 for p in layout.placements)
    if plain:
        assert regular_cuts(layout) is not None


def test_fsdp_over_tensor_parallel_makes_a_grid() -> None:
    """The mesh of FSDP x TP cuts one dim twice, the outer axis inside: a strided split."""
    layout = Layout.on_mesh((16, 4), Mesh((2, 4), tuple(range(8))), (Split(0, 4), Split(0)))
    cuts = regular_cuts(layout)
    assert cuts is not None
    assert [(cut.count, cut.teller) for cut in cuts[0]] == [(4, 1), (2, 0)]
    division = plan_divisions({"t": Tensor(layout, 4)}, file_count=1)["t"]
    assert isinstance(division, RegularDivision)
    assert [division.chunks_of(rank)[0].box for rank in (0, 1, 4)] == [
        Box((0, 0), (2, 4)),
        Box((4, 0), (6, 4)),
        Box((2, 0), (4, 4)),
    ]


def test_a_strided_split_that_does_not_divide_evenly_is_listed() -> None:
    layout = Layout.on_mesh((15, 4), Mesh((2, 4), tuple(range(8))), (Split(0, 4), Split(0)))
    assert regular_cuts(layout) is None


def test_a_rank_outside_the_mesh_writes_nothing() -> None:
    layout = Layout.on_mesh((4,), Mesh.line([2, 3]), (Replicate(),))
    division = plan_divisions({"t": Tensor(layout, 4)}, file_count=2)["t"]
    assert division.chunks_of(0) == ()

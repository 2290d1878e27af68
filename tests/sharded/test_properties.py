"""Any layout, any dtype, any shape: what moves between ranks is compared with NumPy, bit by bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings, strategies as st

from shardkeep.layouts import Layout
from shardkeep.sharded import ChunkShardingSpec, ShardedTensor, ShardingSpec, shard_tensor
from shardkeep.testing.box_strategies import boxes_in
from shardkeep.testing.example_counts import examples
from shardkeep.testing.layout_strategies import (
    Owned,
    distinct_values,
    dtypes,
    layouts,
    owned_tilings,
    raw,
    shapes,
)
from shardkeep.testing.thread_ranks import ThreadRanks
from tests.sharded.making import boxes_of, listed, owners, sharded

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf")

Shape = tuple[int, ...]


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    return distinct_values(draw(shapes()), draw(dtypes()))


@st.composite
def owned(draw: st.DrawFn, shape: Shape, ranks: range) -> Owned:
    """Shards of every kind of tiling, with their owners."""
    if draw(st.booleans()):
        return draw(owned_tilings(shape, ranks))
    return boxes_of(draw(layouts(shape, ranks, replicas=False)))


@st.composite
def goals(draw: st.DrawFn, shape: Shape, ranks: range) -> ShardingSpec | Layout:
    """What to reshard to: a chunk spec with repeated and missing ranks, listed boxes, a layout."""
    kinds = [
        owned(shape, ranks).map(listed),
        layouts(shape, ranks, replicas=False),
    ]
    if shape:
        dims = st.integers(-len(shape), len(shape) - 1)
        some = st.lists(st.sampled_from(ranks), min_size=1, max_size=6).map(owners)
        kinds.append(st.builds(ChunkShardingSpec, dims, some))
    return draw(st.one_of(kinds))


def require_shards(tensors: list[ShardedTensor], full: torch.Tensor) -> None:
    """Each rank's shards hold their boxes of `full`."""
    array = raw(full)
    held = 0
    for rank, tensor in enumerate(tensors):
        assert tensor.dtype == full.dtype
        assert tensor.shape == full.shape
        for shard in tensor.local_shards():
            assert shard.metadata.rank == rank
            assert raw(shard.tensor).tolist() == array[shard.metadata.box.slices()].tolist()
            held += shard.tensor.numel()
    assert held == full.numel()


@settings(max_examples=examples(90), deadline=None)
@given(data=st.data(), full=tensors())
def test_any_tiling_reshards_to_any_other_on_4_ranks(
    four: ThreadRanks, data: st.DataObject, full: torch.Tensor
):
    source = data.draw(owned(tuple(full.shape), range(4)))
    goal = data.draw(goals(tuple(full.shape), range(4)))

    made = four.run(lambda _, group: sharded(full, source, group).reshard(goal))

    require_shards(made, full)
    if isinstance(goal, Layout):
        for rank in range(4):
            assert made[0].sharded_layout.boxes_of(rank) == goal.boxes_of(rank)


@settings(max_examples=examples(90), deadline=None)
@given(data=st.data(), full=tensors())
def test_resharding_leaves_the_source_as_it_was_and_can_be_chained(
    three: ThreadRanks, data: st.DataObject, full: torch.Tensor
):
    source = data.draw(owned(tuple(full.shape), range(3)))
    first, second = (data.draw(goals(tuple(full.shape), range(3))) for _ in range(2))

    def act(rank, group):
        tensor = sharded(full, source, group)
        return tensor, tensor.reshard(first).reshard(second)

    made = three.run(act)

    require_shards([before for before, _ in made], full)
    require_shards([after for _, after in made], full)


@settings(max_examples=examples(110), deadline=None)
@given(data=st.data(), full=tensors())
def test_gather_brings_the_whole_to_one_rank_alone(
    three: ThreadRanks, data: st.DataObject, full: torch.Tensor
):
    source = data.draw(owned(tuple(full.shape), range(3)))
    dst, with_out = data.draw(st.integers(0, 2)), data.draw(st.booleans())

    def act(rank, group):
        out = torch.empty_like(full) if with_out and rank == dst else None
        found = sharded(full, source, group).gather(dst, out)
        assert (found is out) if with_out else True
        return found

    made = three.run(act)

    assert [rank for rank in range(3) if made[rank] is not None] == [dst]
    assert raw(made[dst]).tolist() == raw(full).tolist()


@settings(max_examples=examples(110), deadline=None)
@given(data=st.data(), full=tensors())
def test_full_tensor_brings_the_whole_to_all(
    four: ThreadRanks, data: st.DataObject, full: torch.Tensor
):
    source = data.draw(owned(tuple(full.shape), range(4)))

    for found in four.run(lambda _, group: sharded(full, source, group).full_tensor()):
        assert found.dtype == full.dtype
        assert raw(found).tolist() == raw(full).tolist()


@settings(max_examples=examples(110), deadline=None)
@given(data=st.data(), full=tensors())
def test_fetch_brings_each_rank_the_box_it_wants(
    three: ThreadRanks, data: st.DataObject, full: torch.Tensor
):
    source = data.draw(owned(tuple(full.shape), range(3)))
    wishes = [data.draw(st.one_of(st.none(), boxes_in(full.shape))) for _ in range(3)]

    made = three.run(lambda rank, group: sharded(full, source, group).fetch(wishes[rank]))

    for wish, found in zip(wishes, made, strict=True):
        if wish is None:
            assert found is None
        else:
            assert raw(found).tolist() == raw(full)[wish.slices()].tolist()


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data(), full=tensors())
def test_shard_tensor_hands_out_the_boxes_of_any_ranks_tensor(
    three: ThreadRanks, data: st.DataObject, full: torch.Tensor
):
    spec = listed(data.draw(owned(tuple(full.shape), range(3))))
    src_rank = data.draw(st.integers(0, 2))

    def act(rank, group):
        mine = full if rank == src_rank else torch.zeros_like(full)
        return shard_tensor(mine, spec, src_rank, group)

    require_shards(three.run(act), full)

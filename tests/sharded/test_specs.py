"""Rules that divide a tensor."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings, strategies as st

from shardkeep.boxes import Box
from shardkeep.errors import CoverError, InvalidError, UnsupportedError
from shardkeep.layouts import Layout, ListedLayout
from shardkeep.sharded import (
    ChunkShardingSpec,
    EnumerableShardingSpec,
    RemoteDevice,
    ShardedTensorMetadata,
    ShardingSpec,
    ShardMetadata,
    TensorProperties,
    infer_sharding_spec,
    zeros,
)
from shardkeep.sharded.specs import spec_of_layout
from shardkeep.testing.example_counts import examples
from shardkeep.testing.layout_strategies import layouts, shapes
from shardkeep.testing.thread_ranks import ThreadRanks
from tests.sharded.making import boxes_of, chunks, owners

PROPERTIES = TensorProperties(torch.float32)


def described(spec: ShardingSpec, *size: int) -> list[str]:
    return [str(record) for record in spec.build_metadata(size, PROPERTIES).shards_metadata]


def test_chunks_follow_the_chunk_rule():
    assert described(chunks([0, 1, 2], dim=1), 2, 7) == [
        "[0:2, 0:3] on rank:0/cpu",
        "[0:2, 3:6] on rank:1/cpu",
        "[0:2, 6:7] on rank:2/cpu",
    ]


def test_5_rows_over_4_ranks_put_the_empty_chunk_at_5():
    assert described(chunks([0, 1, 2, 3]), 5) == [
        "[0:2] on rank:0/cpu",
        "[2:4] on rank:1/cpu",
        "[4:5] on rank:2/cpu",
        "[5:5] on rank:3/cpu",
    ]


def test_dims_count_from_the_end_too():
    assert described(chunks([1, 0], dim=-1), 2, 4) == described(chunks([1, 0], dim=1), 2, 4)


def test_a_rank_may_own_several_chunks_or_none():
    assert described(chunks([2, 0, 2]), 3) == [
        "[0:1] on rank:2/cpu",
        "[1:2] on rank:0/cpu",
        "[2:3] on rank:2/cpu",
    ]


def test_a_named_dim_is_not_supported():
    with pytest.raises(UnsupportedError, match="named dim 'rows' is not supported"):
        ChunkShardingSpec("rows", owners([0]))  # type: ignore[arg-type]


@pytest.mark.parametrize("dim", [True, False, 1.0, None])
def test_a_dim_is_an_int(dim: object):
    with pytest.raises(InvalidError, match="a sharding dim is an int, got"):
        ChunkShardingSpec(dim, owners([0]))  # type: ignore[arg-type]


def test_chunks_need_a_placement():
    with pytest.raises(InvalidError, match="needs at least one placement"):
        ChunkShardingSpec(0, [])


@pytest.mark.parametrize(("dim", "size"), [(2, [4, 4]), (-3, [4, 4]), (0, [])])
def test_a_dim_that_the_tensor_lacks_is_refused(dim: int, size: list[int]):
    with pytest.raises(InvalidError, match=f"dim {dim} is not a dim of a tensor of size"):
        ChunkShardingSpec(dim, owners([0])).build_metadata(size, PROPERTIES)


def test_chunks_do_not_touch_the_callers_list():
    placements: list[str] = owners([0, 1])
    spec = ChunkShardingSpec(0, placements)
    placements.append("rank:2/cpu")

    assert placements == ["rank:0/cpu", "rank:1/cpu", "rank:2/cpu"]
    assert spec.placements == [RemoteDevice("rank:0/cpu"), RemoteDevice("rank:1/cpu")]


def test_a_bad_placement_is_refused():
    with pytest.raises(InvalidError, match="cannot read the owner of placement 'node:0/cpu'"):
        ChunkShardingSpec(0, ["node:0/cpu"])


def test_specs_are_values():
    assert chunks([0, 1]) == chunks([0, 1])
    assert chunks([0, 1]) != chunks([1, 0])
    assert chunks([0, 1]) != chunks([0, 1], dim=1)
    assert len({chunks([0, 1]), chunks([0, 1])}) == 1
    assert pickle.loads(pickle.dumps(chunks([0, 1]))) == chunks([0, 1])
    assert copy.deepcopy(chunks([0, 1])) == chunks([0, 1])


TOP = ShardMetadata([0, 0], [2, 4], "rank:0/cpu")
BOTTOM = ShardMetadata([2, 0], [2, 4], "rank:1/cpu")


def test_listed_shards_come_back_as_they_are():
    spec = EnumerableShardingSpec([BOTTOM, TOP])

    assert spec.build_metadata([4, 4], PROPERTIES).shards_metadata == [BOTTOM, TOP]


def test_listed_shards_are_not_shared_with_the_caller_or_the_tensor():
    given_list = [TOP, BOTTOM]
    spec = EnumerableShardingSpec(given_list)
    given_list.clear()
    spec.build_metadata([4, 4], PROPERTIES).shards_metadata.clear()

    assert spec.shards == [TOP, BOTTOM]


def test_listed_shards_are_at_least_one():
    with pytest.raises(InvalidError, match="needs at least one shard"):
        EnumerableShardingSpec([])


def test_listed_shards_have_equally_many_dims():
    with pytest.raises(InvalidError, match="must all have the same number of dims"):
        EnumerableShardingSpec([TOP, ShardMetadata([4], [1], "rank:0/cpu")])


def test_listed_shards_that_overlap_are_named():
    with pytest.raises(
        CoverError,
        match=r"shards 0 \(\[0:2, 0:4\] on rank:0/cpu\) and 1 .* overlap at \[1:2, 0:4\]",
    ):
        EnumerableShardingSpec([TOP, ShardMetadata([1, 0], [2, 4], "rank:1/cpu")])


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ([5, 4], r"no box holds \[4:5, 0:4\]"),
        ([3, 4], r"box 1 .* reaches outside shape \(3, 4\)"),
        ([4], r"reaches outside shape \(4,\)"),
    ],
)
def test_listed_shards_must_cover_the_tensor(size: list[int], message: str):
    with pytest.raises(CoverError, match=message):
        EnumerableShardingSpec([TOP, BOTTOM]).build_metadata(size, PROPERTIES)


def test_identical_empty_shards_do_no_harm():
    empty = ShardMetadata([4, 0], [0, 4], "rank:2/cpu")
    spec = EnumerableShardingSpec([TOP, empty, BOTTOM, empty])

    assert len(spec.build_metadata([4, 4], PROPERTIES).shards_metadata) == 4
    assert hash(spec) == hash(EnumerableShardingSpec([TOP, empty, BOTTOM, empty]))


class GridSpec(ShardingSpec):
    """A user's own rule: cells of a grid, row by row."""

    def __init__(self, counts: tuple[int, int], ranks: Sequence[int]) -> None:
        self.counts, self.ranks = counts, ranks

    def build_metadata(
        self, tensor_sizes: Sequence[int], tensor_properties: TensorProperties
    ) -> ShardedTensorMetadata:
        layout = Layout.grid(tensor_sizes, self.counts, self.ranks)
        records = [
            ShardMetadata(box.start, box.shape, f"rank:{rank}/cpu")
            for rank, box in boxes_of(layout)
        ]
        return ShardedTensorMetadata(records, torch.Size(tensor_sizes), tensor_properties)


def test_a_users_own_spec_makes_shards_and_tensors(four: ThreadRanks):
    full = torch.arange(24.0).reshape(4, 6)
    spec = GridSpec((2, 2), [3, 1, 2, 0])

    def act(rank, group):
        tensor = spec.shard(full * (rank + 1), src_rank=1, process_group=group)
        made = zeros(spec, 4, 6, process_group=group)
        assert made.sharding_spec() is spec
        assert tensor.sharding_spec() is spec
        return tensor.local_tensor().tolist(), made.local_tensor().shape

    found = four.run(act)

    assert found[3] == ((full[:2, :3] * 2).tolist(), (2, 3))
    assert found[0] == ((full[2:, 3:] * 2).tolist(), (2, 3))


def test_a_spec_must_say_how_it_divides():
    with pytest.raises(TypeError, match="build_metadata"):
        ShardingSpec()  # type: ignore[abstract]


@pytest.mark.parametrize("dim", [0, 1])
def test_chunks_are_inferred_from_their_shards(dim: int):
    for rows in (8, 9):
        spec = chunks([3, 1, 2], dim)
        shards = spec.build_metadata([rows, rows], PROPERTIES).shards_metadata

        assert infer_sharding_spec(shards) == spec
        assert infer_sharding_spec(shards[::-1]) == spec


def test_chunks_with_an_empty_one_are_inferred():
    spec = chunks([0, 1, 2, 3])

    assert infer_sharding_spec(spec.build_metadata([5, 2], PROPERTIES).shards_metadata) == spec


@pytest.mark.parametrize(
    "shards",
    [
        [ShardMetadata([0, 0], [4, 4], "rank:0/cpu")],
        [ShardMetadata([0], [1], "rank:0/cpu"), ShardMetadata([1], [3], "rank:1/cpu")],
        [ShardMetadata([0], [2]), ShardMetadata([2], [2])],
        [ShardMetadata([], [], "rank:0/cpu")],
        [
            ShardMetadata([0, 0], [1, 1], "rank:0/cpu"),
            ShardMetadata([0, 1], [1, 1], "rank:0/cpu"),
            ShardMetadata([1, 0], [1, 2], "rank:0/cpu"),
        ],
    ],
    ids=["one shard", "uneven", "no owners", "0-dim", "two dims"],
)
def test_other_shards_are_listed(shards: list[ShardMetadata]):
    assert infer_sharding_spec(shards) == EnumerableShardingSpec(shards)


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data(), shape=shapes())
def test_the_spec_of_a_layout_makes_its_boxes(data: st.DataObject, shape: tuple[int, ...]):
    layout = data.draw(layouts(shape, range(4), replicas=False))
    spec = spec_of_layout(layout, torch.device("cpu"))

    records = spec.build_metadata(shape, PROPERTIES).shards_metadata

    made = [(each.rank, each.box) for each in records if not each.box.is_empty]
    assert made == [(part.rank, part.box) for part in layout.parts()]
    for rank in range(4):
        mine = [each.shard_sizes for each in records if each.rank == rank]
        if isinstance(layout, ListedLayout):
            # A local tensor for each box that was listed, empty ones too.
            assert tuple(mine) == layout.buffer_shapes_of(rank)


def test_the_spec_of_a_layout_with_replicas_is_refused_with_a_picture():
    with pytest.raises(InvalidError, match=r"holds each cell once.*\nrank 0: \[0:4\]\nrank 1: "):
        spec_of_layout(Layout.replicated((4,), [0, 1]), torch.device("cpu"))


def test_an_empty_tensor_belongs_to_the_layouts_first_rank():
    spec = spec_of_layout(Layout.chunked((0, 4), 0, [3, 2]), torch.device("cpu"))

    assert spec.shards == [ShardMetadata.of_box(Box.whole((0, 4)), "rank:2/cpu")]

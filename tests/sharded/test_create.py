"""How a sharded tensor comes to be, and what is refused on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from shardkeep import sharded
from shardkeep.boxes import Box
from shardkeep.errors import CoverError, InvalidError
from shardkeep.sharded import (
    EnumerableShardingSpec,
    Shard,
    ShardedTensor,
    ShardedTensorBase,
    ShardedTensorMetadata,
    ShardMetadata,
    TensorProperties,
    init_from_local_shards,
)
from shardkeep.testing.layout_strategies import DTYPES
from shardkeep.testing.thread_ranks import ThreadRanks
from tests.sharded.making import chunks, listed, owners, pieces, whole

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf")

ALONE = chunks([0, 0])
FULL = torch.arange(12.0).reshape(4, 3)


@pytest.mark.parametrize(
    ("factory", "value"), [(sharded.zeros, 0.0), (sharded.ones, 1.0)], ids=["zeros", "ones"]
)
def test_filled_tensors_are_made(factory: Callable[..., ShardedTensor], value: float):
    assert torch.equal(whole(factory(ALONE, 5, 3)), torch.full((5, 3), value))


@pytest.mark.parametrize("size", [(5, 3), ([5, 3],), (torch.Size([5, 3]),), ((5, 3),)])
def test_a_size_is_numbers_or_one_sequence(size: tuple[Any, ...]):
    assert sharded.zeros(ALONE, *size).shape == (5, 3)
    assert sharded.empty(ALONE, *size).shape == (5, 3)
    assert ShardedTensor(ALONE, *size).shape == (5, 3)
    assert sharded.rand(ALONE, *size).shape == (5, 3)
    assert sharded.randn(ALONE, *size).shape == (5, 3)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(2, torch.int64), (2.5, torch.float32), (True, torch.bool), (1j, torch.complex64)],
)
def test_full_has_the_dtype_of_its_value(value: complex, dtype: torch.dtype):
    made = sharded.full(ALONE, (4, 3), value)

    assert made.dtype == dtype
    assert torch.equal(whole(made), torch.full((4, 3), value))


def test_full_takes_a_dtype():
    assert sharded.full(ALONE, 4, 2, dtype=torch.float16).dtype == torch.float16


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_can_be_allocated(dtype: torch.dtype):
    made = sharded.zeros(ALONE, 3, 2, dtype=dtype)

    assert made.dtype == dtype
    assert made.metadata().tensor_properties.dtype == dtype
    assert [piece.dtype for piece in pieces(made)] == [dtype, dtype]


def test_the_default_dtype_is_the_one_of_the_moment():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert sharded.zeros(ALONE, 4).dtype == torch.float64
    finally:
        torch.set_default_dtype(before)


def test_each_rank_allocates_only_its_own_shards(three: ThreadRanks):
    spec = chunks([2, 0, 2])

    made = three.run(lambda _, group: sharded.ones(spec, 6, 2, process_group=group))

    assert [[list(p.shape) for p in pieces(tensor)] for tensor in made] == [
        [[2, 2]],
        [],
        [[2, 2], [2, 2]],
    ]
    assert all(tensor.shape == (6, 2) for tensor in made)


def test_tensors_that_require_grad_have_shards_that_do():
    made = sharded.zeros(ALONE, 4, requires_grad=True)

    assert made.requires_grad
    assert all(piece.requires_grad for piece in pieces(made))
    assert made.metadata().tensor_properties.requires_grad
    assert sharded.rand(ALONE, 4, requires_grad=True).requires_grad


@pytest.mark.parametrize(
    ("spec", "size"),
    [(listed([(0, Box((), ()))]), ()), (ALONE, (0, 3)), (chunks([0], dim=1), (3, 0))],
    ids=["0-dim", "no rows", "no columns"],
)
def test_0_dim_and_empty_tensors_are_made(spec: Any, size: tuple[int, ...]):
    made = sharded.full(spec, size, 7.0)

    assert made.shape == size
    assert torch.equal(whole(made), torch.full(size, 7.0))
    assert torch.equal(made.full_tensor(), torch.full(size, 7.0))


def test_what_is_no_spec_is_refused():
    with pytest.raises(InvalidError, match="expected a ShardingSpec, got str"):
        sharded.empty("rank:0/cpu", 4)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [(4.0,), ("4",), (None,), (True,), ([2, "a"],)])
def test_a_size_is_made_of_ints(size: tuple[Any, ...]):
    with pytest.raises(TypeError, match="a size is made of ints, got"):
        sharded.empty(ALONE, *size)


def test_a_size_is_not_negative():
    with pytest.raises(InvalidError, match="a size must not be negative"):
        sharded.empty(ALONE, 4, -1)


def test_only_strided_tensors_are_made():
    with pytest.raises(InvalidError, match=r"only layout torch\.strided is supported"):
        sharded.empty(ALONE, 4, layout=torch.sparse_coo)


def test_only_contiguous_tensors_are_made():
    with pytest.raises(InvalidError, match=r"only torch\.contiguous_format is supported"):
        sharded.empty(ALONE, 4, memory_format=torch.channels_last)


def test_an_owner_outside_the_group_is_refused():
    with pytest.raises(InvalidError, match=r"owned by rank 1, but the group has ranks \[0\]"):
        sharded.empty(chunks([0, 1]), 4)


def test_a_placement_without_owner_is_refused():
    """In the reference nobody owns such a shard, and every rank silently gets none."""
    with pytest.raises(InvalidError, match="owned by no rank; give it a placement such as 'rank:0"):
        sharded.empty(sharded.ChunkShardingSpec(0, ["cpu"]), 4)


def test_a_worker_name_needs_rpc():
    with pytest.raises(
        RuntimeError, match="placement on worker 'trainer0' needs the RPC framework"
    ):
        sharded.empty(sharded.ChunkShardingSpec(0, ["trainer0/cpu"]), 4)


def test_references_to_remote_shards_need_rpc():
    with pytest.raises(RuntimeError, match="init_rrefs needs the RPC framework"):
        sharded.empty(ALONE, 4, init_rrefs=True)
    with pytest.raises(RuntimeError, match=r"remote_shards\(\) needs .* init_rrefs=True.*fetch"):
        sharded.empty(ALONE, 4).remote_shards()


def test_a_spec_that_leaves_a_gap_is_refused():
    class Gap(sharded.ShardingSpec):
        def build_metadata(self, tensor_sizes, tensor_properties):
            records = [ShardMetadata([0], [1], "rank:0/cpu")]
            return ShardedTensorMetadata(records, torch.Size(tensor_sizes), tensor_properties)

    with pytest.raises(CoverError, match=r"no box holds \[1:4\]"):
        sharded.empty(Gap(), 4)


LIKE: list[tuple[Callable[..., ShardedTensor], float]] = [
    (sharded.zeros_like, 0.0),
    (sharded.ones_like, 1.0),
    (lambda tensor, **options: sharded.full_like(tensor, 3.0, **options), 3.0),
]


@pytest.mark.parametrize(("factory", "value"), LIKE, ids=["zeros", "ones", "full"])
def test_likes_keep_boxes_dtype_and_group(
    three: ThreadRanks, factory: Callable[..., ShardedTensor], value: float
):
    spec = chunks([2, 0, 2])

    def act(rank, group):
        like = sharded.empty(spec, 6, 2, dtype=torch.float16, process_group=group)
        made = factory(like)
        assert made.process_group is group
        assert made.sharded_layout == like.sharded_layout
        assert made.sharding_spec() == spec
        assert made.dtype == torch.float16
        return made.full_tensor()

    for full in three.run(act):
        assert torch.equal(full, torch.full((6, 2), value, dtype=torch.float16))


def test_likes_take_another_dtype(three: ThreadRanks):
    """Also on a rank that has no shard to learn it from."""

    def act(rank, group):
        like = sharded.empty(chunks([2, 0, 2]), 6, process_group=group)
        made = [
            sharded.zeros_like(like, dtype=torch.int32),
            sharded.full_like(like, 2, dtype=torch.int32),
            sharded.empty_like(like, dtype=torch.int32),
        ]
        return [tensor.metadata().tensor_properties.dtype for tensor in made]

    assert three.run(act) == [[torch.int32] * 3] * 3
    assert sharded.rand_like(sharded.zeros(ALONE, 4), dtype=torch.float64).dtype == torch.float64
    assert sharded.randn_like(sharded.zeros(ALONE, 4)).shape == (4,)


def shard(tensor: torch.Tensor, offsets: list[int], rank: int = 0) -> Shard:
    return Shard.from_tensor_and_offsets(tensor, offsets, rank)


def test_ranks_bring_their_shards(three: ThreadRanks):
    full = torch.arange(12).reshape(4, 3)
    boxes = {0: [Box((0, 0), (4, 1))], 1: [], 2: [Box((0, 1), (3, 3)), Box((3, 1), (4, 3))]}

    def act(rank, group):
        mine = [
            shard(full[box.slices()].contiguous(), list(box.start), rank) for box in boxes[rank]
        ]
        made = init_from_local_shards(mine, 4, 3, process_group=group)
        assert [piece.data_ptr() for piece in pieces(made)] == [s.tensor.data_ptr() for s in mine]
        return made.metadata().shards_metadata, made.dtype, made.full_tensor()

    for records, dtype, found in three.run(act):
        assert [str(each) for each in records] == [
            "[0:4, 0:1] on rank:0/cpu",
            "[0:3, 1:3] on rank:2/cpu",
            "[3:4, 1:3] on rank:2/cpu",
        ]
        assert dtype == torch.int64
        assert torch.equal(found, full)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_shards_of_every_dtype_are_put_together(dtype: torch.dtype):
    made = init_from_local_shards([shard(torch.zeros(4, dtype=dtype), [0])], 4)

    assert made.dtype == dtype


def test_rows_are_counted_up_where_the_size_is_unknown(three: ThreadRanks):
    def act(rank, group):
        mine = shard(torch.full((rank + 1, 2), float(rank)), [0, 0], rank)
        made = init_from_local_shards([mine], None, None, process_group=group)
        again = init_from_local_shards([mine], [None, 2], process_group=group)  # type: ignore[list-item]
        assert again.shape == made.shape
        return made.full_tensor().tolist(), made.local_shards()[0].metadata.shard_offsets

    found = three.run(act)

    assert found[0][0] == [[0.0] * 2] + [[1.0] * 2] * 2 + [[2.0] * 2] * 3
    assert [offsets for _, offsets in found] == [(0, 0), (1, 0), (3, 0)]


@pytest.mark.parametrize("count", [0, 2])
def test_rows_are_counted_up_of_one_shard_a_rank(count: int):
    mine = [shard(torch.zeros(2, 2), [0, 0]) for _ in range(count)]

    with pytest.raises(InvalidError, match=f"needs exactly one local shard on each rank.*{count}"):
        init_from_local_shards(mine, None, None)


def test_rows_of_a_0_dim_tensor_cannot_be_counted():
    with pytest.raises(InvalidError, match="rows of a 0-dim tensor cannot be counted"):
        init_from_local_shards([shard(torch.tensor(1.0), [])], None)


def test_0_dim_and_empty_shards_are_put_together():
    assert init_from_local_shards([shard(torch.tensor(7.0), [])]).full_tensor().item() == 7.0
    assert init_from_local_shards([shard(torch.tensor(7.0), [])], []).shape == ()
    assert init_from_local_shards([shard(torch.zeros(0, 3), [0, 0])], 0, 3).shape == (0, 3)
    empty_beside_full = [shard(torch.zeros(0), [0]), shard(torch.ones(2), [0])]
    assert whole(init_from_local_shards(empty_beside_full, 2)).tolist() == [1.0, 1.0]


BAD_SHARDS: dict[str, tuple[Callable[[], list[Any]], type[Exception], str]] = {
    "no shard": (lambda: [torch.zeros(4)], TypeError, "local_shards is a list of Shard"),
    "nobody": (list, InvalidError, "no rank brings a shard; at least one shard is needed"),
    "no placement": (
        lambda: [Shard(torch.zeros(4), ShardMetadata([0], [4]))],
        InvalidError,
        r"local shard 0 .* has no placement",
    ),
    "not mine": (
        lambda: [shard(torch.zeros(4), [0], rank=3)],
        InvalidError,
        "local shard 0 is placed on rank:3/cpu, but it is held by rank 0",
    ),
    "sparse": (
        lambda: [shard(torch.zeros(4).to_sparse(), [0])],
        InvalidError,
        "local shard 0 has layout torch.sparse_coo; only torch.strided",
    ),
    "strided": (
        lambda: [shard(torch.zeros(8)[::2], [0])],
        InvalidError,
        r"local shard 0 is not contiguous; call .contiguous\(\)",
    ),
    "dtypes": (
        lambda: [shard(torch.zeros(2), [0]), shard(torch.zeros(2).double(), [2])],
        InvalidError,
        "local shard 1 has dtype=torch.float64, local shard 0 has dtype=torch.float32",
    ),
    "grads": (
        lambda: [shard(torch.zeros(2), [0]), shard(torch.zeros(2, requires_grad=True), [2])],
        InvalidError,
        "local shard 1 has requires_grad=True, local shard 0 has requires_grad=False",
    ),
    "overlap": (
        lambda: [shard(torch.zeros(3), [0]), shard(torch.zeros(2), [2])],
        CoverError,
        r"shard \[0:3\] on rank:0/cpu and shard \[2:4\] on rank:0/cpu share \[2:3\]",
    ),
    "gap": (
        lambda: [shard(torch.zeros(3), [0])],
        CoverError,
        r"the shards do not make up the tensor: no box holds \[3:4\]",
    ),
}


@pytest.mark.parametrize("name", BAD_SHARDS)
def test_shards_that_do_not_fit_are_refused(name: str):
    make, error, message = BAD_SHARDS[name]

    with pytest.raises(error, match=message):
        init_from_local_shards(make(), 4)


def test_a_size_of_another_type_is_refused():
    with pytest.raises(TypeError, match=r"a size is made of ints, got 4.0"):
        init_from_local_shards([shard(torch.zeros(4), [0])], 4.0)  # type: ignore[arg-type]


def metadata_of(*records: ShardMetadata, size: int = 4, **properties: Any) -> ShardedTensorMetadata:
    return ShardedTensorMetadata(
        list(records), torch.Size([size]), TensorProperties(torch.float32, **properties)
    )


FIRST, SECOND = ShardMetadata([0], [2], "rank:0/cpu"), ShardMetadata([2], [2], "rank:0/cpu")
OTHERS = ShardMetadata([2], [2], "rank:1/cpu")


def test_local_shards_join_the_metadata_of_all(three: ThreadRanks):
    records = [ShardMetadata([i], [1], owner) for i, owner in enumerate(owners([2, 0, 2]))]
    metadata = ShardedTensorMetadata(records, torch.Size([3]), TensorProperties(torch.float32))

    def act(rank, group):
        mine = [
            Shard(torch.full((1,), float(r.shard_offsets[0])), r) for r in records if r.rank == rank
        ]
        made = ShardedTensor._init_from_local_shards_and_global_metadata(
            mine, metadata, process_group=group
        )
        return made.full_tensor().tolist(), len(made.local_shards())

    assert three.run(act) == [([0.0, 1.0, 2.0], count) for count in (1, 0, 2)]


def test_local_shards_may_come_in_any_order():
    shards = [Shard(torch.full((2,), 2.0), SECOND), Shard(torch.full((2,), 1.0), FIRST)]

    made = ShardedTensor.from_local_shards_and_global_metadata(shards, metadata_of(FIRST, SECOND))

    assert whole(made).tolist() == [1.0, 1.0, 2.0, 2.0]
    assert [each.metadata for each in made.local_shards()] == [FIRST, SECOND]


def test_an_empty_shard_may_start_where_a_full_one_does():
    empty = ShardMetadata([0], [0], "rank:0/cpu")
    shards = [
        Shard(torch.zeros(0), empty),
        Shard(torch.ones(2), FIRST),
        Shard(torch.ones(2), SECOND),
    ]

    made = ShardedTensor.from_local_shards_and_global_metadata(
        shards, metadata_of(FIRST, empty, SECOND)
    )

    assert whole(made).tolist() == [1.0] * 4


def test_a_given_spec_is_kept():
    spec = EnumerableShardingSpec([FIRST, SECOND])
    shards = [Shard(torch.zeros(2), FIRST), Shard(torch.zeros(2), SECOND)]

    made = ShardedTensor.from_local_shards_and_global_metadata(
        shards, metadata_of(FIRST, SECOND), sharding_spec=spec
    )

    assert made.sharding_spec() is spec


def test_the_metadata_is_not_shared_with_the_caller():
    metadata = metadata_of(FIRST, SECOND)
    shards = [Shard(torch.zeros(2), FIRST), Shard(torch.zeros(2), SECOND)]
    made = ShardedTensor.from_local_shards_and_global_metadata(shards, metadata)

    made.requires_grad_()
    made.metadata().shards_metadata.clear()
    made.metadata().tensor_properties.dtype = torch.int8

    assert not metadata.tensor_properties.requires_grad
    assert made.metadata().shards_metadata == [FIRST, SECOND]
    assert made.metadata().tensor_properties.dtype == torch.float32
    metadata.tensor_properties.dtype = torch.int8
    assert made.metadata().tensor_properties.dtype == torch.float32


BAD_GLOBAL: dict[str, tuple[Callable[[], tuple[list[Shard], Any]], type[Exception], str]] = {
    "count": (
        lambda: ([Shard(torch.zeros(2), FIRST)], metadata_of(FIRST, SECOND)),
        RuntimeError,
        "rank 0 brings 1 local shards, the metadata lists 2 for it",
    ),
    "none listed": (lambda: ([], metadata_of()), InvalidError, "the metadata lists no shard"),
    "sparse": (
        lambda: ([], metadata_of(FIRST, layout=torch.sparse_coo)),
        InvalidError,
        "only layout torch.strided is supported",
    ),
    "no placement": (
        lambda: ([], metadata_of(ShardMetadata([0], [4]))),
        InvalidError,
        "owned by no rank",
    ),
    "outside the group": (
        lambda: ([Shard(torch.zeros(2), FIRST)], metadata_of(FIRST, OTHERS)),
        InvalidError,
        r"owned by rank 1, but the group has ranks \[0\]",
    ),
    "another box": (
        lambda: ([Shard(torch.zeros(2), SECOND)], metadata_of(FIRST, size=2)),
        InvalidError,
        r"lists shard \[0:2\] on rank:0/cpu for rank 0, which brings \[2:4\]",
    ),
    "dtype": (
        lambda: ([Shard(torch.zeros(2).half(), FIRST)], metadata_of(FIRST, size=2)),
        InvalidError,
        "has dtype=torch.float16, the metadata says dtype=torch.float32",
    ),
    "grad": (
        lambda: ([Shard(torch.zeros(2), FIRST)], metadata_of(FIRST, size=2, requires_grad=True)),
        InvalidError,
        "has requires_grad=False, the metadata says requires_grad=True",
    ),
    "pinned": (
        lambda: ([Shard(torch.zeros(2), FIRST)], metadata_of(FIRST, size=2, pin_memory=True)),
        InvalidError,
        "has pin_memory=False, the metadata says pin_memory=True",
    ),
    "strided": (
        lambda: ([Shard(torch.zeros(4)[::2], FIRST)], metadata_of(FIRST, size=2)),
        InvalidError,
        "is not contiguous",
    ),
    "gap": (
        lambda: ([Shard(torch.zeros(2), FIRST)], metadata_of(FIRST)),
        CoverError,
        r"no box holds \[2:4\]",
    ),
    "overlap": (
        lambda: (
            [Shard(torch.zeros(2), FIRST)] * 2,
            metadata_of(FIRST, FIRST, size=2),
        ),
        CoverError,
        r"share \[0:2\]",
    ),
}


@pytest.mark.parametrize("name", BAD_GLOBAL)
def test_shards_that_do_not_fit_the_metadata_are_refused(name: str):
    make, error, message = BAD_GLOBAL[name]
    shards, metadata = make()

    with pytest.raises(error, match=message):
        ShardedTensor.from_local_shards_and_global_metadata(shards, metadata)


def test_a_base_holds_every_ranks_shards_in_one_process():
    shards = [Shard(torch.zeros(2), FIRST), Shard(torch.ones(4)[::2], OTHERS)]

    base = ShardedTensorBase.from_local_shards_and_global_metadata(
        shards, metadata_of(FIRST, OTHERS)
    )

    assert type(base) is ShardedTensorBase
    assert [each.metadata.rank for each in base.local_shards()] == [0, 1]
    assert base.shape == (4,)
    assert base.sharding_spec() == chunks([0, 1])
    assert base.sharded_layout.ranks == (0, 1)


def test_a_base_still_has_to_be_tiled():
    with pytest.raises(CoverError, match=r"no box holds \[2:4\]"):
        ShardedTensorBase.from_local_shards_and_global_metadata([], metadata_of(FIRST))


def test_a_base_may_hold_nothing():
    base = ShardedTensorBase.from_local_shards_and_global_metadata([], metadata_of(FIRST, OTHERS))

    assert base.local_shards() == []
    assert base.device == torch.device("cpu")


def test_a_local_tensor_with_its_spec_is_enough(three: ThreadRanks):
    def act(rank, group):
        local = torch.full((2, 3), float(rank))
        made = ShardedTensor.from_local_tensor(local, chunks([2, 0, 1]), 6, 3, process_group=group)
        assert made.local_tensor() is local
        assert made.sharding_spec() == chunks([2, 0, 1])
        return made.full_tensor()[:, 0].tolist()

    assert three.run(act) == [[2.0, 2.0, 0.0, 0.0, 1.0, 1.0]] * 3


def test_a_local_tensor_fills_one_shard():
    with pytest.raises(InvalidError, match="gives 2 shards to rank 0; one local tensor fills one"):
        ShardedTensor.from_local_tensor(torch.zeros(2), ALONE, 4)


def test_a_local_tensor_has_the_size_of_its_shard():
    with pytest.raises(InvalidError, match=r"tensor has size \[3\], its metadata says \[4\]"):
        ShardedTensor.from_local_tensor(torch.zeros(3), chunks([0]), 4)


def test_a_local_tensor_is_contiguous():
    with pytest.raises(InvalidError, match=r"not contiguous; call .contiguous\(\)"):
        ShardedTensor.from_local_tensor(torch.zeros(8)[::2], chunks([0]), 4)


def test_shards_may_be_sharded_themselves():
    inner = sharded.ones(ALONE, 4, 3)

    made = init_from_local_shards([shard(inner, [0, 0])], 4, 3)

    assert made.local_shards()[0].tensor is inner


def test_public_names_are_those_of_the_reference_too():
    for name in (
        "_init_from_local_shards",
        "_init_from_local_shards_and_global_metadata",
        "_init_from_local_tensor",
    ):
        public = "from" + name.removeprefix("_init_from")
        assert getattr(ShardedTensor, name) == getattr(ShardedTensor, public)

"""Gather, full_tensor, fetch and reshard: what is given back, and what is refused."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch

from shardkeep import sharded as sk
from shardkeep.boxes import Box
from shardkeep.errors import CoverError, InvalidError
from shardkeep.layouts import Layout, Mesh, Replicate, Split
from shardkeep.ranks import exchange
from shardkeep.sharded import gathering, shard_tensor
from shardkeep.testing.layout_strategies import DTYPES, distinct_values, raw
from shardkeep.testing.thread_ranks import ThreadRanks
from tests.sharded.making import chunks, listed, pieces, sharded, whole

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf")

FULL = distinct_values((5, 3))
SPEC = chunks([2, 0, 2])


@pytest.mark.parametrize("dst", [0, 1, 2])
def test_gather_returns_the_whole_on_dst_and_none_elsewhere(three: ThreadRanks, dst: int):
    found = three.run(lambda _, group: sharded(FULL, SPEC, group).gather(dst))

    assert [each is None for each in found] == [rank != dst for rank in range(3)]
    assert torch.equal(found[dst], FULL)


def test_gather_fills_and_returns_out(three: ThreadRanks):
    room = torch.zeros(5, 6)[:, ::2]

    def act(rank, group):
        return sharded(FULL, SPEC, group).gather(dst=1, out=room if rank == 1 else None)

    assert three.run(act)[1] is room
    assert torch.equal(room, FULL)


def test_gather_fills_a_parameter(three: ThreadRanks):
    room = torch.nn.Parameter(torch.zeros(5, 3))

    three.run(lambda rank, g: sharded(FULL, SPEC, g).gather(0, None if rank else room))

    assert torch.equal(room, FULL)
    assert room.is_leaf


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_travel_in_their_own_dtype(three: ThreadRanks, dtype: torch.dtype):
    full = distinct_values((5, 3), dtype)

    found = three.run(lambda _, group: sharded(full, SPEC, group).gather(1))[1]

    assert found.dtype == dtype
    assert raw(found).tolist() == raw(full).tolist()


def test_large_integers_arrive_exactly(three: ThreadRanks):
    full = torch.tensor([2**25 + 1, 2**53 + 1, -(2**62) - 1])

    assert three.run(lambda _, g: sharded(full, SPEC, g).gather(0))[0].tolist() == full.tolist()


def test_gather_converts_to_a_dtype_that_is_named(three: ThreadRanks):
    def act(rank, group):
        tensor = sharded(FULL, SPEC, group)
        made = tensor.gather(0, dtype=torch.float64)
        out = torch.zeros(5, 3, dtype=torch.int32) if rank == 0 else None
        return made, tensor.gather(0, out, dtype=torch.int32)

    made, out = three.run(act)[0]
    assert made.dtype == torch.float64
    assert torch.equal(made, FULL.double())
    assert torch.equal(out, FULL.int())


def test_enforce_dtype_is_accepted(three: ThreadRanks):
    found = three.run(lambda _, group: sharded(FULL, SPEC, group).gather(0, enforce_dtype=True))

    assert torch.equal(found[0], FULL)


BAD_GATHERS: dict[str, tuple[dict[str, Any], str]] = {
    "dst": ({"dst": 1}, "dst=1 is not a rank of a group of 1"),
    "negative dst": ({"dst": -1}, "dst=-1 is not a rank of a group of 1"),
    "size": ({"out": torch.zeros(3, 5)}, r"out has size \[3, 5\], need \[5, 3\]"),
    "dtype": (
        {"out": torch.zeros(5, 3, dtype=torch.float64)},
        "out has dtype torch.float64, the tensor torch.float32; pass dtype=torch.float64",
    ),
    "other dtype": (
        {"out": torch.zeros(5, 3), "dtype": torch.float64},
        "out has dtype torch.float32",
    ),
}


@pytest.mark.parametrize("name", BAD_GATHERS)
def test_bad_arguments_of_gather_are_refused(name: str):
    options, message = BAD_GATHERS[name]

    with pytest.raises(InvalidError, match=message):
        sharded(FULL, chunks([0, 0])).gather(**options)


@pytest.mark.parametrize("size", [(), (0, 3), (3, 0)])
def test_0_dim_and_empty_tensors_travel(three: ThreadRanks, size: tuple[int, ...]):
    full = torch.full(size, 7.0)

    def act(rank, group):
        tensor = sharded(full, [(2, Box.whole(size))], group)
        moved = tensor.reshard(listed([(0, Box.whole(size))]))
        return (
            tensor.gather(1),
            tensor.full_tensor(),
            moved.full_tensor(),
            tensor.fetch(Box.whole(size)),
        )

    found = three.run(act)

    assert torch.equal(found[1][0], full)
    for _, *others in found:
        assert all(torch.equal(each, full) for each in others)


def test_ranks_without_shards_take_part(three: ThreadRanks):
    def act(rank, group):
        tensor = sharded(FULL, chunks([1]), group)
        return tensor.full_tensor(), tensor.fetch(Box((0, 0), (1, 1))), len(tensor.local_shards())

    for full, cell, _ in three.run(act):
        assert torch.equal(full, FULL)
        assert cell.tolist() == [[1.0]]


def test_large_tensors_travel_in_messages_of_bounded_size(three: ThreadRanks):
    full = distinct_values((600, 300), torch.int64)
    sizes: list[int] = []
    departure = exchange._departure

    def watched(*args):
        parcel = departure(*args)
        sizes.append(parcel.wire.numel())
        return parcel

    with (
        mock.patch.object(exchange, "_departure", watched),
        mock.patch.object(exchange, "_message_nbytes", return_value=100_000),
    ):
        found = three.run(lambda _, g: sharded(full, chunks([0, 1, 2], dim=1), g).full_tensor())

    assert all(torch.equal(each, full) for each in found)
    assert max(sizes) <= 100_000
    assert sum(sizes) == 2 * full.nbytes


WISHES: dict[str, Any] = {
    "box": Box((1, 0), (3, 2)),
    "slices": (slice(1, 3), slice(0, 2)),
    "negative slices": (slice(-4, -2), slice(None, -1)),
}


@pytest.mark.parametrize("form", WISHES)
def test_a_box_is_fetched_in_every_form(three: ThreadRanks, form: str):
    found = three.run(lambda _, group: sharded(FULL, SPEC, group).fetch(WISHES[form]))

    assert all(torch.equal(each, FULL[1:3, :2]) for each in found)


def test_missing_slices_take_the_whole_dim():
    tensor = sharded(FULL, chunks([0, 0]))

    assert torch.equal(tensor.fetch([slice(2, None)]), FULL[2:])
    assert torch.equal(tensor.fetch([]), FULL)
    assert tensor.fetch([slice(4, 2)]).shape == (0, 3)
    assert tensor.fetch(Box((5, 3), (5, 3))).shape == (0, 0)
    assert tensor.fetch(None) is None


@pytest.mark.parametrize(
    ("box", "message"),
    [
        (Box((0, 0), (6, 3)), r"box \[0:6, 0:3\] does not lie inside a tensor of size \[5, 3\]"),
        (Box((0,), (2,)), r"does not lie inside"),
        ([slice(0, 4, 2)], "a box is made of slices with step 1"),
        ([0, slice(0, 2)], r"a box is a Box or a sequence of slices, got \[0, slice"),
        ([slice(None)] * 3, r"3 slices for a tensor of size \[5, 3\]"),
    ],
)
def test_boxes_that_are_not_there_are_refused(box: Any, message: str):
    with pytest.raises(InvalidError, match=message):
        sharded(FULL, chunks([0, 0])).fetch(box)


def test_resharding_makes_a_new_tensor(three: ThreadRanks):
    def act(rank, group):
        tensor = sharded(FULL, SPEC, group)
        made = tensor.reshard(SPEC)
        assert made is not tensor
        for piece in pieces(made):
            piece.zero_()
        return tensor.full_tensor(), tensor.sharding_spec()

    for full, spec in three.run(act):
        assert torch.equal(full, FULL)
        assert spec == SPEC


def test_a_cyclic_change_of_owners_is_resharded(three: ThreadRanks):
    full = distinct_values((6, 2))

    def act(rank, group):
        return sharded(full, chunks([0, 1, 2]), group).reshard(chunks([1, 2, 0])).local_tensor()

    assert [each.tolist() for each in three.run(act)] == [
        full[4:].tolist(),
        full[:2].tolist(),
        full[2:4].tolist(),
    ]


def test_only_cells_that_change_owner_travel(three: ThreadRanks):
    sent: list[int] = []
    departure = exchange._departure

    def watched(*args):
        parcel = departure(*args)
        sent.append(parcel.wire.numel())
        return parcel

    before, after = (
        [(0, Box((0,), (6,))), (1, Box((6,), (8,)))],
        [(0, Box((0,), (5,))), (2, Box((5,), (8,)))],
    )
    full = distinct_values((8,), torch.int8)
    with mock.patch.object(exchange, "_departure", watched):
        made = three.run(lambda _, group: sharded(full, before, group).reshard(listed(after)))

    assert sorted(sent) == [1, 2]
    assert pieces(made[2])[0].tolist() == [6, 7, 8]


def test_a_large_shard_that_changes_its_owner_travels_in_one_message(three: ThreadRanks):
    """It goes from memory to memory, whatever its size: no buffer has to hold it."""
    full = distinct_values((600, 300), torch.int64)
    sent: list[int] = []
    departure = exchange._departure

    def watched(*args):
        parcel = departure(*args)
        sent.append(parcel.wire.nbytes)
        return parcel

    def act(rank, group):
        return sharded(full, chunks([0, 1, 2]), group).reshard(chunks([1, 2, 0])).full_tensor()

    with (
        mock.patch.object(exchange, "_message_nbytes", return_value=100_000),
        mock.patch.object(exchange, "_departure", watched),
    ):
        found = three.run(act)

    assert all(torch.equal(each, full) for each in found)
    assert sent.count(full.nbytes // 3) == 3


@pytest.mark.parametrize("rows", [300, 3000])
def test_plans_for_large_tensors_are_not_kept(three: ThreadRanks, rows: int):
    full = distinct_values((rows, 300))
    gathering.plan_moves.cache_clear()
    three.run(lambda _, group: sharded(full, SPEC, group).reshard(chunks([1, 2, 0])))

    assert gathering.plan_moves.cache_info().currsize == (3 if rows == 300 else 0)


def test_resharding_keeps_dtype_grad_and_group(three: ThreadRanks):
    def act(rank, group):
        tensor = sharded(FULL.double(), SPEC, group).requires_grad_()
        made = tensor.reshard(chunks([0, 1], dim=1))
        return made.dtype, made.requires_grad, made.process_group is group, made.is_leaf

    assert three.run(act) == [(torch.float64, True, True, True)] * 3


def test_a_layout_is_as_good_as_a_spec(three: ThreadRanks):
    layout = Layout.on_mesh((5, 3), Mesh((1, 3), (2, 1, 0)), [Split(1), Split(0, 2)])

    made = three.run(lambda _, group: sharded(FULL, SPEC, group).reshard(layout))

    assert all(made[0].sharded_layout.boxes_of(r) == layout.boxes_of(r) for r in range(3))
    assert [piece.tolist() for piece in pieces(made[2])] == [FULL[:1].tolist(), FULL[3:4].tolist()]


@pytest.mark.parametrize(
    ("goal", "error", "message"),
    [
        (Layout.on_mesh((5, 3), Mesh((2,), (0, 1)), [Replicate()]), InvalidError, "each cell once"),
        (Layout.chunked((5, 3), 0, [0, 1]), InvalidError, r"owned by rank 1, but the group has"),
        (Layout.chunked((4, 3), 0, [0]), CoverError, r"no box holds \[4:5, 0:3\]"),
        (listed([(0, Box((0, 0), (5, 2)))]), CoverError, r"no box holds \[0:5, 2:3\]"),
        ("rows", InvalidError, "reshard takes a ShardingSpec or a Layout, got str"),
        (chunks([0], dim=2), InvalidError, "dim 2 is not a dim"),
    ],
)
def test_goals_that_a_tensor_cannot_reach_are_refused(
    goal: Any, error: type[Exception], message: str
):
    with pytest.raises(error, match=message):
        sharded(FULL, chunks([0, 0])).reshard(goal)


def test_shard_tensor_takes_the_sources_values_alone(three: ThreadRanks):
    def act(rank, group):
        tensor = shard_tensor(FULL * (rank + 1), SPEC, src_rank=2, process_group=group)
        assert tensor.sharding_spec() is SPEC
        return tensor.full_tensor()

    for found in three.run(act):
        assert torch.equal(found, FULL * 3)


def test_shard_tensor_copies(three: ThreadRanks):
    def act(rank, group):
        full = FULL.clone()
        tensor = shard_tensor(full, SPEC, process_group=group)
        full.zero_()
        return tensor.full_tensor()

    assert all(torch.equal(found, FULL) for found in three.run(act))


def test_shard_tensor_shards_5_rows_over_4_ranks(four: ThreadRanks):
    made = four.run(lambda _, group: shard_tensor(FULL, chunks(range(4)), process_group=group))

    assert [list(pieces(tensor)[0].shape) for tensor in made] == [[2, 3], [2, 3], [1, 3], [0, 3]]


def test_shard_tensor_keeps_grad_and_takes_what_is_not_contiguous():
    made = shard_tensor(FULL.t().requires_grad_(), chunks([0, 0]))

    assert made.requires_grad
    assert made.is_leaf
    assert torch.equal(whole(made), FULL.t())


def test_a_spec_shards_a_tensor_too():
    assert torch.equal(whole(chunks([0, 0]).shard(FULL)), FULL)
    assert torch.equal(whole(listed([(0, Box.whole((5, 3)))]).shard(FULL, 0)), FULL)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0], chunks([0])), "only a plain tensor can be sharded, got list"),
        (
            (sk.zeros(chunks([0]), 4), chunks([0])),
            "only a plain tensor can be sharded, got Sharded",
        ),
        ((FULL, "rows"), "expected a ShardingSpec, got str"),
        ((FULL, chunks([0]), 1), "src_rank=1 is not a rank of a group of 1"),
        ((FULL, chunks([0, 1])), r"owned by rank 1, but the group has ranks \[0\]"),
    ],
)
def test_what_cannot_be_sharded_is_refused(arguments: Any, message: str):
    with pytest.raises(InvalidError, match=message):
        shard_tensor(*arguments)


def test_moving_is_planned_once_for_equal_layouts(three: ThreadRanks):
    gathering.plan_moves.cache_clear()
    three.run(lambda _, group: [sharded(FULL, SPEC, group).full_tensor() for _ in range(3)])

    assert gathering.plan_moves.cache_info().misses == 3

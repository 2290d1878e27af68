"""Boxes from memory to memory: every dtype, every stride, in messages of bounded size."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from shardkeep.errors import RankFailedError
from shardkeep.layouts import Layout
from shardkeep.plan import plan_moves
from shardkeep.ranks import RankGroup, Shipment, broadcast_bytes, exchange, lanes, ship
from shardkeep.testing.example_counts import examples
from shardkeep.testing.layout_strategies import (
    DTYPES,
    distinct_values,
    dtypes,
    held_by,
    layouts,
    raw,
    shapes,
)
from shardkeep.testing.thread_ranks import ThreadRanks

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf")


@contextmanager
def tiny_messages(nbytes: int = 32, tag_count: int = 3) -> Iterator[None]:
    """Many rounds for few bytes."""
    with (
        mock.patch.object(exchange, "_MIN_MESSAGE_NBYTES", nbytes),
        mock.patch.object(exchange, "_TAG_COUNT", tag_count),
    ):
        yield


def _memory(layout: Layout, rank: int, full: torch.Tensor) -> list[torch.Tensor]:
    """The rank's local tensors, from the oracle's bytes."""
    buffers = held_by(layout, rank, raw(full))
    return [
        torch.from_numpy(np.ascontiguousarray(b)).view(full.dtype).reshape(b.shape[:-1])
        if b.size
        else torch.empty(b.shape[:-1], dtype=full.dtype)
        for b in buffers
    ]


def _shipment(
    source: Layout, target: Layout, rank: int, full: torch.Tensor, *, strided: bool = False
) -> Shipment:
    room = [torch.zeros(s, dtype=full.dtype) for s in target.buffer_shapes_of(rank)]
    memory = _memory(source, rank, full)
    if strided:
        room, memory = [_strided(t) for t in room], [_strided(t) for t in memory]
    return Shipment(plan_moves((source,), target, rank), full.dtype, memory, room)


def _strided(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in memory that is not in one piece."""
    if not tensor.ndim:
        return tensor
    wide = torch.zeros((*tensor.shape[:-1], 2 * tensor.shape[-1]), dtype=tensor.dtype)
    wide[..., ::2] = tensor
    return wide[..., ::2]


def _require_arrived(target: Layout, rank: int, full: torch.Tensor, room: object) -> None:
    expected = held_by(target, rank, raw(full))
    assert isinstance(room, list)
    assert len(expected) == len(room)
    for mine, theirs in zip(room, expected, strict=True):
        assert raw(mine).tolist() == theirs.tolist()


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_any_tensors_go_from_any_layout_to_any_other_in_one_go(
    three: ThreadRanks, data: st.DataObject
):
    tensors, ways = [], []
    for _ in range(data.draw(st.integers(1, 3))):
        shape = data.draw(shapes())
        tensors.append(distinct_values(shape, data.draw(dtypes())))
        ways.append([data.draw(layouts(shape, range(3))) for _ in range(2)])
    strided, nbytes = data.draw(st.booleans()), data.draw(st.sampled_from([16, 100, 10_000]))

    def act(rank, group):
        shipments = [
            _shipment(source, target, rank, full, strided=strided)
            for full, (source, target) in zip(tensors, ways, strict=True)
        ]
        ship(RankGroup.of(group), shipments, what="shipping", buffer_nbytes=1)
        return [shipment.target for shipment in shipments]

    with tiny_messages(nbytes):
        arrived = three.run(act)
    for rank, rooms in enumerate(arrived):
        for full, (_, target), room in zip(tensors, ways, rooms, strict=True):
            _require_arrived(target, rank, full, room)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_travels_bit_for_bit(three: ThreadRanks, dtype: torch.dtype):
    full = distinct_values((7, 5), dtype)
    source, target = Layout.chunked((7, 5), 0, range(3)), Layout.chunked((7, 5), 1, range(3))

    def act(rank, group):
        shipment = _shipment(source, target, rank, full)
        ship(RankGroup.of(group), [shipment], what="shipping")
        return shipment.target

    for rank, room in enumerate(three.run(act)):
        _require_arrived(target, rank, full, room)


def test_nan_payloads_and_negative_zero_travel_bit_for_bit(three: ThreadRanks):
    bits = torch.tensor([0x7FC00001, 0x7F800001, -0x80000000, 0x7F800000], dtype=torch.int32)
    full = bits.view(torch.float32).repeat(3)
    source, target = Layout.replicated((12,), [1]), Layout.replicated((12,), range(3))

    def act(rank, group):
        shipment = _shipment(source, target, rank, full)
        ship(RankGroup.of(group), [shipment], what="shipping")
        return shipment.target[0].view(torch.int32).tolist()

    assert three.run(act) == [bits.tolist() * 3] * 3


def test_values_are_converted_on_arrival_where_the_target_has_another_dtype(three: ThreadRanks):
    full = distinct_values((6,), torch.float32) + 0.25
    source, target = Layout.chunked((6,), 0, range(3)), Layout.replicated((6,), [0, 2])

    def act(rank, group):
        room = [torch.zeros(s, dtype=torch.float64) for s in target.buffer_shapes_of(rank)]
        moves = plan_moves((source,), target, rank)
        memory = _memory(source, rank, full)
        ship(RankGroup.of(group), [Shipment(moves, full.dtype, memory, room)], what="x")
        return [t.tolist() for t in room]

    assert three.run(act) == [[full.tolist()], [], [full.tolist()]]


def test_conjugated_views_are_sent_as_the_values_they_show(three: ThreadRanks):
    full = distinct_values((4,), torch.complex64)
    source, target = Layout.replicated((4,), [0]), Layout.replicated((4,), [2])

    def act(rank, group):
        room = [torch.zeros(s, dtype=full.dtype) for s in target.buffer_shapes_of(rank)]
        memory = [full.conj()] if rank == 0 else []
        moves = plan_moves((source,), target, rank)
        ship(RankGroup.of(group), [Shipment(moves, full.dtype, memory, room)], what="x")
        return room

    (arrived,) = three.run(act)[2]
    assert torch.equal(arrived, full.conj().resolve_conj())


def test_a_single_cell_of_a_transposed_tensor_is_sent_and_received(three: ThreadRanks):
    """It counts as contiguous although its stride is not 1."""
    full = distinct_values((1, 1), torch.int64)
    source, target = Layout.replicated((1, 1), [0]), Layout.replicated((1, 1), [1])

    def act(rank, group):
        memory = [distinct_values((3, 4), full.dtype).t()[:1, :1]] if rank == 0 else []
        room = [torch.zeros(3, 4, dtype=full.dtype).t()[1:2, 2:3]] if rank == 1 else []
        moves = plan_moves((source,), target, rank)
        ship(RankGroup.of(group), [Shipment(moves, full.dtype, memory, room)], what="x")
        return [cell.item() for cell in room]

    assert three.run(act) == [[], [1], []]


def test_targets_that_require_grad_are_filled(three: ThreadRanks):
    full = distinct_values((6,))
    source, target = Layout.replicated((6,), [0]), Layout.chunked((6,), 0, range(3))

    def act(rank, group):
        room = [torch.zeros(2, requires_grad=True)]
        moves = plan_moves((source,), target, rank)
        memory = [full.clone().requires_grad_()] if rank == 0 else []
        ship(RankGroup.of(group), [Shipment(moves, full.dtype, memory, room)], what="x")
        return room[0].tolist(), room[0].grad_fn

    assert three.run(act) == [([1.0, 2.0], None), ([3.0, 4.0], None), ([5.0, 6.0], None)]


def test_more_rounds_than_tags_do_not_mix_up(three: ThreadRanks):
    full = distinct_values((700,), torch.int64)
    source, target = Layout.chunked((700,), 0, [2, 0, 1]), Layout.chunked((700,), 0, range(3))

    def act(rank, group):
        shipment = _shipment(source, target, rank, full)
        ship(RankGroup.of(group), [shipment], what="shipping", buffer_nbytes=1)
        return shipment.target

    with tiny_messages(nbytes=16):
        for rank, room in enumerate(three.run(act)):
            _require_arrived(target, rank, full, room)


def test_a_large_box_goes_straight_into_the_targets_memory(three: ThreadRanks):
    """No copy of its size is made: the wire is the target itself."""
    full = distinct_values((300_000,), torch.int64)
    source, target = Layout.replicated((300_000,), [1]), Layout.replicated((300_000,), [0])
    wires: list[int] = []
    arrival = exchange._arrival

    def watched(*args):
        parcel = arrival(*args)
        wires.append(parcel.wire.data_ptr())
        return parcel

    def act(rank, group):
        shipment = _shipment(source, target, rank, full)
        ship(RankGroup.of(group), [shipment], what="shipping", buffer_nbytes=1)
        return [(t.data_ptr(), t.nbytes) for t in shipment.target]

    with mock.patch.object(exchange, "_arrival", watched):
        ((start, nbytes),) = three.run(act)[0]
    assert len(wires) == -(-nbytes // (lanes._ROW_FACTOR * exchange._MIN_MESSAGE_NBYTES))
    assert all(start <= wire < start + nbytes for wire in wires)


@pytest.mark.parametrize("max_nbytes", [2**20, 10_000])
def test_a_large_row_is_cut_less_where_no_rank_needs_a_buffer(three: ThreadRanks, max_nbytes: int):
    full = distinct_values((100_000,), torch.int64)
    source, target = Layout.replicated((100_000,), [1]), Layout.replicated((100_000,), [0])
    sizes: list[int] = []
    departure = exchange._departure

    def watched(*args):
        parcel = departure(*args)
        sizes.append(parcel.wire.nbytes)
        return parcel

    def act(rank, group):
        shipment = replace(_shipment(source, target, rank, full), is_dense=True)
        with tiny_messages(nbytes=1000):
            ship(RankGroup.of(group), [shipment], what="shipping", buffer_nbytes=1)
        return shipment.target

    with (
        mock.patch.object(exchange, "_departure", watched),
        mock.patch.object(lanes, "_MAX_DENSE_NBYTES", max_nbytes),
    ):
        found = three.run(act)
    _require_arrived(target, 0, full, found[0])
    assert max(sizes) == min(max_nbytes, full.nbytes)
    assert sum(sizes) == full.nbytes


def test_nothing_to_do_needs_nobody():
    moves = plan_moves((Layout.replicated((2,), [0]),), Layout.replicated((2,), [0]), 0)
    room = [torch.zeros(2)]

    ship(RankGroup.of(), [Shipment(moves, torch.float32, [torch.ones(2)], room)], what="x")
    ship(RankGroup.of(), [], what="x")

    assert room[0].tolist() == [1.0, 1.0]


def test_a_peer_that_does_not_take_part_is_named():
    absent = 1
    # Longer than a rank that is well may be late on a busy machine: it would be named too.
    world = ThreadRanks(3, timeout=2)
    full = distinct_values((9,))
    source, target = Layout.chunked((9,), 0, range(3)), Layout.replicated((9,), range(3))

    def act(rank, group):
        if rank != absent:
            ship(
                RankGroup.of(group),
                [_shipment(source, target, rank, full)],
                what="ShardedTensor.gather",
            )

    for rank, error in enumerate(world.errors(act)):
        if rank == absent:
            assert error is None
        else:
            assert isinstance(error, RankFailedError)
            assert list(error.failures) == [absent]
            assert f"ShardedTensor.gather failed on rank {absent}" in str(error)


@settings(max_examples=examples(15), deadline=None)
@given(data=st.data())
def test_broadcast_fills_every_ranks_tensors_from_one_rank(three: ThreadRanks, data: st.DataObject):
    fulls = [
        distinct_values(data.draw(shapes()), data.draw(dtypes()))
        for _ in range(data.draw(st.integers(0, 3)))
    ]
    root, nbytes = data.draw(st.integers(0, 2)), data.draw(st.sampled_from([40, 10_000]))

    def act(rank, group):
        room = [_strided(torch.zeros_like(full)) for full in fulls]
        sources = fulls if rank == root else []
        group_dtypes = [full.dtype for full in fulls]
        broadcast_bytes(
            RankGroup.of(group), root, sources, room, group_dtypes, buffer_nbytes=nbytes
        )
        return room

    for room in three.run(act):
        assert [raw(a).tolist() for a in room] == [raw(full).tolist() for full in fulls]

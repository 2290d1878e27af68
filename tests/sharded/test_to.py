"""Moving and converting: `to` in all its forms, `cpu`, `cuda`. `meta` stands for another device."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from shardkeep import sharded as sk
from shardkeep.sharded import RemoteDevice, ShardedTensor
from shardkeep.testing.layout_strategies import distinct_values
from shardkeep.testing.thread_ranks import ThreadRanks
from tests.sharded.making import chunks, pieces, sharded, whole

FULL = distinct_values((4, 3))
SPEC = chunks([0, 0])


@pytest.fixture
def tensor() -> ShardedTensor:
    return sharded(FULL, SPEC)


TO_DOUBLE: dict[str, Callable[[ShardedTensor], torch.Tensor]] = {
    "dtype": lambda t: t.to(torch.float64),
    "dtype=": lambda t: t.to(dtype=torch.float64),
    "device, dtype": lambda t: t.to("cpu", torch.float64),
    "device, dtype=": lambda t: t.to("cpu", dtype=torch.float64),
    "torch.device, dtype": lambda t: t.to(torch.device("cpu"), torch.float64),
    "all positional": lambda t: t.to("cpu", torch.float64, True, True),
    "dtype, non_blocking, copy": lambda t: t.to(torch.float64, False, True),
    "tensor": lambda t: t.to(torch.zeros(1, dtype=torch.float64)),
    "sharded tensor": lambda t: t.to(sharded(FULL.double(), SPEC)),
    "keywords": lambda t: t.to(device="cpu", dtype=torch.float64, copy=True, non_blocking=True),
    "double": lambda t: t.double(),
    "type": lambda t: t.type(torch.float64),
    "type_as": lambda t: t.type_as(torch.zeros(1, dtype=torch.float64)),
    "memory_format": lambda t: t.to(torch.float64, memory_format=torch.preserve_format),
}


@pytest.mark.parametrize("form", TO_DOUBLE)
def test_every_form_of_to_converts(tensor: ShardedTensor, form: str):
    made = TO_DOUBLE[form](tensor)

    assert isinstance(made, ShardedTensor)
    assert made.dtype == torch.float64
    assert made.metadata().tensor_properties.dtype == torch.float64
    assert torch.equal(whole(made), FULL.double())
    assert made.sharded_layout == tensor.sharded_layout
    assert made.sharding_spec() == SPEC
    assert tensor.dtype == torch.float32


@pytest.mark.parametrize(
    "to",
    [
        lambda t: t.to("cpu"),
        lambda t: t.to(torch.device("cpu")),
        lambda t: t.to(torch.float32),
        lambda t: t.to(torch.zeros(1)),
        lambda t: t.to(device="cpu", dtype=torch.float32),
        lambda t: t.cpu(),
        lambda t: t.float(),
    ],
)
def test_where_nothing_changes_the_tensor_itself_comes_back(
    tensor: ShardedTensor, to: Callable[[ShardedTensor], torch.Tensor]
):
    assert to(tensor) is tensor


def test_a_copy_has_memory_of_its_own(tensor: ShardedTensor):
    made = tensor.to(torch.float32, copy=True)

    pieces(made)[0].zero_()
    assert torch.equal(whole(tensor), FULL)


def test_a_move_takes_the_placements_along(tensor: ShardedTensor):
    made = tensor.to("meta")

    assert made.device == torch.device("meta")
    assert made.is_meta
    assert [piece.device.type for piece in pieces(made)] == ["meta", "meta"]
    assert {r.placement for r in made.metadata().shards_metadata} == {RemoteDevice("rank:0/meta")}
    assert made.sharding_spec() == sk.ChunkShardingSpec(0, ["rank:0/meta"] * 2)
    assert tensor.device == torch.device("cpu")


def test_a_move_back_to_the_cpu(tensor: ShardedTensor):
    made = sk.empty(sk.ChunkShardingSpec(0, ["rank:0/meta"] * 2), 4, 3, dtype=torch.int8)

    # Meta tensors hold no values to copy; empty_like is what brings them to memory.
    back = sk.empty_like(made, device="cpu")

    assert back.device == torch.device("cpu")
    assert back.dtype == torch.int8
    assert {str(r.placement) for r in back.metadata().shards_metadata} == {"rank:0/cpu"}


def test_other_ranks_placements_move_to_the_same_type_of_device(three: ThreadRanks):
    """Also on a rank without shards, so that the metadata stays the same on all ranks."""

    def act(rank, group):
        made = sharded(FULL, chunks([0, 2]), group).to("meta")
        return made.metadata().shards_metadata, made.device

    first, second, third = three.run(act)

    assert first == second == third
    assert [str(record.placement) for record in first[0]] == ["rank:0/meta", "rank:2/meta"]


def test_a_rank_without_shards_learns_the_dtype(three: ThreadRanks):
    def act(rank, group):
        made = sharded(FULL, chunks([0, 2]), group).to(torch.int16)
        return made.dtype, made.metadata().tensor_properties.dtype

    assert three.run(act) == [(torch.int16, torch.int16)] * 3


def test_the_group_stays_unless_another_is_given(three: ThreadRanks):
    def act(rank, group):
        tensor = sharded(FULL, chunks([0, 2]), group)
        return (
            tensor.to(torch.int16).process_group is group,
            tensor.to(torch.int16, process_group=None).process_group is group,
            tensor.cpu(process_group=group) is tensor,
        )

    assert three.run(act) == [(True, True, True)] * 3


def test_another_group_is_taken_over_with_the_same_memory(two: ThreadRanks, three: ThreadRanks):
    tensor = three.run(lambda _, group: sharded(FULL, chunks([0, 1]), group))[0]
    other = two.run(lambda rank, group: group)[0]

    for moved in (tensor.to("cpu", process_group=other), tensor.cpu(process_group=other)):
        assert moved.process_group is other
        assert pieces(moved)[0].data_ptr() == pieces(tensor)[0].data_ptr()
        assert moved.sharding_spec() == tensor.sharding_spec()
    assert tensor.process_group is not other


def test_grad_is_tracked_through_to(tensor: ShardedTensor):
    tensor.requires_grad_()

    assert tensor.to(torch.float64).requires_grad
    assert not tensor.detach().to(torch.float64).requires_grad


def test_the_memory_format_of_cpu_is_taken(tensor: ShardedTensor):
    assert tensor.cpu(memory_format=torch.preserve_format) is tensor
    assert tensor.cpu(torch.contiguous_format) is tensor


@pytest.mark.skipif(torch.cuda.is_available(), reason="speaks of machines without CUDA")
@pytest.mark.parametrize(
    "move", [lambda t: t.cuda(), lambda t: t.cuda(0), lambda t: t.to("cuda:0")]
)
def test_cuda_where_there_is_none_is_torchs_own_error(tensor: ShardedTensor, move):
    with pytest.raises((RuntimeError, AssertionError), match=r"(?i)cuda|accelerator"):
        move(tensor)


@pytest.mark.parametrize("size", [(), (0, 3)])
def test_0_dim_and_empty_tensors_are_converted(size: tuple[int, ...]):
    tensor = sk.full(
        sk.EnumerableShardingSpec([sk.ShardMetadata([0] * len(size), size, "rank:0/cpu")]),
        size,
        7.0,
    )

    assert torch.equal(whole(tensor.to(torch.int64)), torch.full(size, 7))
    assert tensor.to("meta").shape == size

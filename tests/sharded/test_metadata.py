"""Records of shards, tensors and their properties."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from shardkeep.boxes import Box
from shardkeep.errors import InvalidError
from shardkeep.sharded import (
    MemoryFormatEncoding,
    RemoteDevice,
    Shard,
    ShardedTensorMetadata,
    ShardMetadata,
    TensorProperties,
)


def test_offsets_and_sizes_are_kept_as_plain_tuples():
    record = ShardMetadata(torch.Size([0, 4]), [2, 4], "rank:1/cpu")

    assert record.shard_offsets == (0, 4)
    assert type(record.shard_offsets) is tuple
    assert record.placement == RemoteDevice("rank:1/cpu")
    assert record.rank == 1
    assert record.box == Box((0, 4), (2, 8))
    assert str(record) == "[0:2, 4:8] on rank:1/cpu"


def test_lists_and_tuples_make_equal_records():
    one, other = ShardMetadata([0], [4], "rank:0/cpu"), ShardMetadata((0,), (4,), "rank:0/cpu")

    assert one == other
    assert hash(one) == hash(other)


def test_a_record_does_not_follow_the_callers_lists():
    offsets, sizes = [0, 0], [2, 2]
    record = ShardMetadata(offsets, sizes, "rank:0/cpu")
    offsets[0] = sizes[0] = 9

    assert (record.shard_offsets, record.shard_sizes) == ((0, 0), (2, 2))


def test_a_record_cannot_be_changed():
    with pytest.raises(AttributeError, match="cannot assign"):
        ShardMetadata([0], [4]).shard_offsets = (1,)  # type: ignore[misc]


def test_a_record_needs_no_placement_and_may_be_empty_or_0_dim():
    assert ShardMetadata([3], [0]).rank is None
    assert str(ShardMetadata([3], [0])) == "[3:3] on nobody"
    assert ShardMetadata([], []).box == Box((), ())
    assert ShardMetadata.of_box(Box((1, 2), (3, 4)), "rank:5/cpu").shard_sizes == (2, 2)
    assert ShardMetadata([0], [1], torch.device("cpu")).rank is None


@pytest.mark.parametrize(
    ("offsets", "sizes", "message"),
    [
        ([0], [1, 1], r"differ in length: \[0\] and \[1, 1\]"),
        ([0, -1], [1, 1], r"shard_offsets must not be negative, got \[0, -1\]"),
        ([0, 0], [1, -1], r"shard_sizes must not be negative, got \[1, -1\]"),
    ],
)
def test_records_that_make_no_sense_are_refused(offsets: list[int], sizes: list[int], message: str):
    with pytest.raises(InvalidError, match=message):
        ShardMetadata(offsets, sizes)


def test_a_record_passes_through_pickle():
    record = ShardMetadata([0, 4], [2, 4], "rank:1/cpu")

    assert pickle.loads(pickle.dumps(record)) == record
    assert copy.deepcopy(record) == record


def test_the_default_dtype_is_the_one_of_the_moment():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert TensorProperties().dtype == torch.float64
        assert ShardedTensorMetadata().tensor_properties.dtype == torch.float64
    finally:
        torch.set_default_dtype(before)
    assert TensorProperties().dtype == before


@pytest.mark.parametrize(
    "memory_format", [torch.contiguous_format, torch.channels_last, torch.preserve_format]
)
def test_properties_pass_through_pickle(memory_format: torch.memory_format):
    properties = TensorProperties(torch.bfloat16, torch.strided, True, memory_format, True)

    assert pickle.loads(pickle.dumps(properties)) == properties
    assert copy.deepcopy(properties) == properties


def test_the_state_of_properties_names_the_memory_format():
    state = TensorProperties(torch.int8).__getstate__()

    assert state == (torch.int8, torch.strided, False, MemoryFormatEncoding.CONTIGUOUS, False)


def test_a_memory_format_without_a_name_cannot_be_pickled():
    properties = TensorProperties(memory_format=torch.channels_last_3d)

    with pytest.raises(RuntimeError, match=r"memory format torch.channels_last_3d has no encoding"):
        pickle.dumps(properties)


@pytest.mark.parametrize("code", [3, "contiguous", None])
def test_an_unknown_name_of_a_memory_format_is_refused(code: object):
    state = (torch.float32, torch.strided, False, code, False)

    with pytest.raises(RuntimeError, match="encodes no memory format"):
        TensorProperties().__setstate__(state)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tensor", "memory_format"),
    [
        (torch.zeros(2, 3), torch.contiguous_format),
        (torch.zeros(()), torch.contiguous_format),
        (torch.zeros(2, 3).t(), torch.preserve_format),
        (torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last), torch.channels_last),
    ],
)
def test_properties_of_a_tensor_tell_its_memory_format(
    tensor: torch.Tensor, memory_format: torch.memory_format
):
    assert TensorProperties.create_from_tensor(tensor).memory_format is memory_format


def test_properties_of_a_tensor_tell_dtype_and_grad():
    tensor = torch.zeros(2, dtype=torch.float16, requires_grad=True)

    assert TensorProperties.create_from_tensor(tensor) == TensorProperties(
        torch.float16, requires_grad=True
    )


def test_the_metadata_of_a_tensor_passes_through_pickle():
    metadata = ShardedTensorMetadata(
        [ShardMetadata([0], [4], "rank:0/cpu")], torch.Size([4]), TensorProperties(torch.int64)
    )

    assert pickle.loads(pickle.dumps(metadata)) == metadata
    assert ShardedTensorMetadata().shards_metadata == []


def test_a_shard_is_memory_with_its_record():
    tensor = torch.zeros(2, 4)
    shard = Shard(tensor, ShardMetadata([0, 4], (2, 4), "rank:0/cpu"))

    assert shard.tensor is tensor


def test_a_shard_of_a_tensor_takes_size_and_device_from_it():
    shard = Shard.from_tensor_and_offsets(torch.zeros(2, 4, device="meta"), [6, 0], rank=3)

    assert shard.metadata == ShardMetadata([6, 0], [2, 4], "rank:3/meta")


def test_a_shard_whose_size_differs_from_its_record_is_refused():
    with pytest.raises(InvalidError, match=r"tensor has size \[2, 4\], its metadata says \[4, 2\]"):
        Shard(torch.zeros(2, 4), ShardMetadata([0, 0], [4, 2], "rank:0/cpu"))


def test_a_shard_whose_device_differs_from_its_placement_is_refused():
    with pytest.raises(InvalidError, match="tensor is on meta, its placement says cpu"):
        Shard(torch.zeros(2, device="meta"), ShardMetadata([0], [2], "rank:0/cpu"))


def test_a_shard_without_placement_may_be_anywhere():
    assert Shard(torch.zeros(2, device="meta"), ShardMetadata([0], [2])).metadata.rank is None


def test_a_shard_needs_as_many_offsets_as_dims():
    with pytest.raises(InvalidError, match="differ in length"):
        Shard.from_tensor_and_offsets(torch.zeros(2, 4), [0], rank=0)

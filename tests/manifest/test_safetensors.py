"""The safetensors package reads our data files, and finds in them what we put there."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.numpy as safetensors_numpy
import safetensors.torch as safetensors_torch
import torch
from hypothesis import given

from shardkeep.boxes import Box
from shardkeep.errors import CorruptError
from shardkeep.manifest import (
    DTYPES,
    EntrySpec,
    ValueNode,
    chunk_name,
    decode_header,
    itemsize,
    plan_header,
    storage_entry,
    tensor_nbytes,
)
from tests.manifest.examples import SAVE_ID
from tests.manifest.headers import entry_lists


def data_file(entries: list[EntrySpec], payload: bytes) -> bytes:
    plan = plan_header(
        entries,
        save_id=SAVE_ID,
        rank=0,
        number=0,
        block_nbytes=4096,
        data_nbytes=len(payload),
        per_rank={"rng": ValueNode.of('quote " and \\ and é')},
    )
    return plan.encode(range(plan.block_count)) + payload


def payload_of(nbytes: int) -> bytes:
    # 0 and 1 only: any other byte is no bool.
    return bytes([place % 3 == 1 for place in range(nbytes)])


SHAPES = {"matrix": (3, 5), "scalar": (), "empty": (0, 4), "one": (1,)}
TORCH_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_of_every_dtype_are_read_by_safetensors(dtype: str):
    entries = [
        (name, *storage_entry(dtype, shape), tensor_nbytes(dtype, shape))
        for name, shape in SHAPES.items()
    ]
    payload = payload_of(sum([nbytes for *_, nbytes in entries]))

    loaded = safetensors_torch.load(data_file(entries, payload))

    assert set(loaded) == set(SHAPES)
    start = 0
    for name, _, stored_shape, nbytes in entries:
        tensor = loaded[name].contiguous()
        assert tuple(tensor.shape) == stored_shape
        assert (
            tensor.flatten().view(torch.uint8).numpy().tobytes() == payload[start : start + nbytes]
        )
        start += nbytes
    if dtype in TORCH_DTYPES:
        assert {tensor.dtype for tensor in loaded.values()} == {TORCH_DTYPES[dtype]}


def test_complex_numbers_are_pairs_of_real_and_imaginary():
    array = np.array([1 + 2j, 3 - 4j], np.complex64)
    entry = ("z", *storage_entry("C64", (2,)), 16)

    loaded = safetensors_numpy.load(data_file([entry], array.tobytes()))
    np.testing.assert_array_equal(loaded["z"], [[1, 2], [3, -4]])


def test_parts_of_a_tensor_are_found_by_their_boxes(tmp_path: Path):
    array = np.arange(24, dtype=np.int32).reshape(4, 6)
    boxes = [Box((0, 0), (4, 2)), Box((0, 2), (3, 6)), Box((3, 2), (4, 6))]
    parts = [np.ascontiguousarray(array[box.slices()]) for box in boxes]
    entries = [
        (chunk_name("w", box, (4, 6)), "I32", box.shape, part.nbytes)
        for box, part in zip(boxes, parts, strict=True)
    ]
    path = tmp_path / "data.safetensors"
    path.write_bytes(data_file(entries, b"".join([part.tobytes() for part in parts])))

    with safetensors.safe_open(path, "np") as file:
        for box, part in zip(boxes, parts, strict=True):
            np.testing.assert_array_equal(file.get_tensor(chunk_name("w", box, (4, 6))), part)
        metadata = json.loads(file.metadata()["shardkeep"])
    assert metadata["per_rank"] == {"rng": {"value": 'quote " and \\ and é'}}
    assert metadata["digests"] == f"{0:016x}"


@given(entry_lists())
def test_any_header_is_one_for_safetensors(entries: list[EntrySpec]):
    payload = payload_of(sum([nbytes for *_, nbytes in entries]))

    found = dict(safetensors.deserialize(data_file(entries, payload)))

    assert {name: (each["dtype"], tuple(each["shape"])) for name, each in found.items()} == {
        name: (dtype, shape) for name, dtype, shape, _ in entries
    }


def test_a_file_without_tensors_is_one_for_safetensors():
    assert safetensors_numpy.load(data_file([], b"")) == {}


def test_a_file_of_safetensors_itself_is_not_taken_for_ours():
    data = safetensors_numpy.save({"w": np.zeros(4)})

    with pytest.raises(CorruptError, match=r"the data start at byte .* no multiple of 4096"):
        decode_header(data, file_nbytes=len(data), where="f")


def test_data_lie_aligned_for_every_dtype():
    entries = [
        (dtype, *storage_entry(dtype, (3,)), tensor_nbytes(dtype, (3,)))
        for dtype in sorted(DTYPES, key=lambda dtype: -itemsize(dtype))
    ]
    data = data_file(entries, payload_of(sum([nbytes for *_, nbytes in entries])))
    header_nbytes = int.from_bytes(data[:8], "little") + 8
    header = decode_header(data[:header_nbytes], file_nbytes=len(data), where="f")

    assert [header.entries[dtype].start % itemsize(dtype) for dtype in DTYPES] == [0] * len(DTYPES)

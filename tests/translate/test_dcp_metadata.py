"""The `.metadata` of DCP is read without running it, whatever it holds."""

# torch does not say what it exports.
# pyright: reportPrivateImportUsage=false

import io
import pickle
import random
import struct
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given, strategies as st
from torch.distributed._shard.sharded_tensor.metadata import (
    TensorProperties as EarlierProperties,
)
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

import shardkeep as sk
from shardkeep.boxes import Box
from shardkeep.errors import CorruptError, ShardkeepError, UnsupportedError
from shardkeep.translate.dcp_metadata import read_metadata
from shardkeep.translate.pickle_reading import read_pickle

warnings.simplefilter("ignore", UserWarning)


def read(data):
    return read_metadata(data, where="here/.metadata")


@pytest.fixture(scope="module")
def real(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("dcp")
    state = {
        "model": {"w": torch.ones(2, 3), "b": torch.zeros((), dtype=torch.bfloat16)},
        "list": [torch.ones(1), {"x": 3}],
        "step": 1,
    }
    dcp.save(state, checkpoint_id=path)
    return (path / ".metadata").read_bytes()


def metadata_of_one(*, chunks=None, path=("w",), file="__0_0.distcp", size=(4,), offset=0, **info):
    """A DCP folder's metadata with one tensor, as torch itself pickles it."""
    chunks = [((0,), (4,))] if chunks is None else chunks
    listed = [ChunkStorageMetadata(torch.Size(a), torch.Size(n)) for a, n in chunks]
    tensor = TensorStorageMetadata(TensorProperties(torch.float32), torch.Size(size), listed)
    places = {MetadataIndex("w", a): _StorageInfo(file, offset, 100, **info) for a, _ in chunks}
    return pickle.dumps(Metadata({"w": tensor}, planner_data={"w": path}, storage_data=places))


def test_what_torch_writes_is_understood(real):
    found = read(real)
    assert list(found.tensors) == ["model.w", "model.b", "list.0"]
    weights = found.tensors["model.w"]
    assert (weights.dtype, weights.shape) == ("F32", (2, 3))
    ((box, item),) = weights.chunks
    assert box == Box((0, 0), (2, 3))
    assert item.file == "__0_0.distcp"
    assert list(found.objects) == ["list.1.x", "step"]
    assert found.paths["list.1.x"] == ("list", 1, "x")


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol_since_2_is_understood(real, protocol):
    again = pickle.dumps(pickle.loads(real), protocol=protocol)
    assert read(again) == read(real)


def test_the_classes_of_earlier_versions_are_understood():
    """Up to torch 2.2, the properties of tensors were those of its sharded tensors."""
    properties = EarlierProperties(dtype=torch.float16)
    chunk = ChunkStorageMetadata(torch.Size((0,)), torch.Size((4,)))
    tensor = TensorStorageMetadata(properties, torch.Size((4,)), [chunk])  # type: ignore[arg-type]
    places = {MetadataIndex("w", (0,)): _StorageInfo("__0_0.distcp", 0, 100)}
    data = pickle.dumps(Metadata({"w": tensor}, storage_data=places))
    assert b"_shard.sharded_tensor.metadata" in data
    assert read(data).tensors["w"].dtype == "F16"
    assert read(data).paths == {}


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (Path(self.path),))


RUNS_UNDER_TORCH = """
import sys, warnings
warnings.simplefilter("ignore")
import torch, torch.distributed.checkpoint as dcp
try:
    dcp.load({"w": torch.zeros(2)}, checkpoint_id=sys.argv[1])
except BaseException as error:
    print(type(error).__name__)
"""


def test_a_hostile_folder_that_runs_code_under_dcp_is_refused_here(tmp_path):
    folder, marker = tmp_path / "dcp", tmp_path / "marker"
    dcp.save({"w": torch.ones(2)}, checkpoint_id=folder)
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    metadata.storage_meta = Evil(str(marker))
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))

    for act in (
        lambda: sk.load(folder),
        lambda: sk.open(folder),
        lambda: sk.load(folder, into={"w": torch.zeros(2)}),
    ):
        with pytest.raises(ShardkeepError, match=r"asks for .*touch.*nothing was run"):
            act()
    assert not marker.exists()

    subprocess.run([sys.executable, "-c", RUNS_UNDER_TORCH, str(folder)], check=True, timeout=120)
    assert marker.exists(), "torch's own reader runs what the folder says"


def test_a_hostile_value_is_refused(tmp_path):
    folder, marker = tmp_path / "dcp", tmp_path / "marker"
    dcp.save({"w": torch.ones(2), "odd": Evil(str(marker))}, checkpoint_id=folder)
    assert not marker.exists()
    with pytest.raises(UnsupportedError, match=r"'odd' is pickled with .*nothing was run"):
        sk.load(folder)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("name", "module"),
    [("system", "os"), ("eval", "builtins"), ("Tensor", "torch"), ("load", "torch")],
)
def test_a_name_that_is_no_class_of_dcp_is_named(name, module):
    data = b"\x80\x02c" + f"{module}\n{name}\n".encode() + b"X\x01\x00\x00\x00x\x85R."
    with pytest.raises(UnsupportedError, match=f"asks for {module}.{name}"):
        read(data)


@pytest.mark.parametrize(
    "file", ["../x", "/etc/passwd", "a/b", "..", "", ".", "a\\b", "a\0b"], ids=repr
)
def test_a_file_outside_of_the_folder_is_refused(file):
    with pytest.raises(CorruptError, match="does not lie in the checkpoint's folder"):
        read(metadata_of_one(file=file))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"chunks": [((2,), (4,))]}, "is not within"),
        ({"chunks": [((0, 0), (4, 1))]}, "is not within"),
        ({"chunks": [((0,), (4,)), ((0,), (4,))]}, "twice"),
        ({"path": ()}, "path of 'w'"),
        ({"path": (-1,)}, "path of 'w'"),
        ({"path": ("a",) * 300}, "path of 'w'"),
        ({"path": (1.5,)}, "path of 'w'"),
        ({"offset": -1}, "no place or size"),
        ({"offset": "x"}, "no place or size"),
        ({"size": (2**62, 2**62)}, "takes more than"),
    ],
)
def test_what_makes_no_sense_is_corrupt(changes, match):
    with pytest.raises(CorruptError, match=match):
        read(metadata_of_one(**changes))


def test_a_stream_transform_is_named():
    with pytest.raises(UnsupportedError, match="stream transform"):
        read(metadata_of_one(transform_descriptors=["stream.zstd"]))


def test_a_list_of_chunks_that_stands_in_many_places_takes_no_more_memory_than_it_is_long():
    chunk = ChunkStorageMetadata(torch.Size((0,)), torch.Size((0,)))
    chunks = [chunk] * 3000
    properties = TensorProperties(torch.float32)
    tensors: dict[str, Any] = {
        f"w{at}": TensorStorageMetadata(properties, torch.Size((4,)), chunks) for at in range(3000)
    }
    with pytest.raises(CorruptError, match="more chunks than"):
        read(pickle.dumps(Metadata(tensors, storage_data={})))


DEEP = 1_000_000


@pytest.mark.parametrize(
    "data",
    [
        # A tuple nested so deep that its hash would overflow the stack, as the key of a dict.
        b"\x80\x02})" + b"\x85" * DEEP + b"Ns.",
        b"\x80\x02" + b"]" * DEEP + b"a" * (DEEP - 1) + b".",
        b"\x80\x02" + b"(" * DEEP + b".",
        b"\x80\x02" + b"}" * DEEP + b".",
        # A place in the memo, a length and a frame that would take all memory.
        b"\x80\x02Nr\xff\xff\xff\xff.",
        b"\x80\x02X\xff\xff\xff\xffab.",
        b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7fN.",
        b"\x80\x02\x8a\xff" + b"\x01" * 255 + b".",
        b"\x80\x02N0.",
        b"\x80\x022.",
        b"",
        b".",
        b"\x80",
        b"garbage",
        b"\x80\x02Nb.",
        b"\x80\x02NNR.",
        b"\x80\x02)Q.",
        b"\x80\x02}(NNu.",
        b"\x80\x02N(NNe.",
        b"\x80\x02\x87.",
        b"\x80\x02X\x02\x00\x00\x00\xff\xfe.",
    ],
    ids=range(21),
)
def test_nothing_that_a_pickle_says_breaks_the_reader(data):
    with pytest.raises(ShardkeepError, match=r"here/\.metadata"):
        read(data)


@given(st.binary(max_size=200), st.integers(0, 2**32), st.integers(0, 60))
def test_damaged_metadata_give_our_errors_only(noise, seed, count):
    data = bytearray(metadata_of_one())
    chance = random.Random(seed)
    for _ in range(count):
        data[chance.randrange(len(data))] = chance.randrange(256)
    for broken in (bytes(data), noise, bytes(data[: chance.randrange(len(data))]) + noise):
        try:
            read(broken)
        except ShardkeepError:
            continue


def test_values_come_out_as_python_has_them():
    value = [None, True, 1, -70000, 2**40, -(2**40), 1.5, "text", ("a", ()), {"k": [2]}, [[], {}]]
    for protocol in (2, 3, 4, 5):
        found = read_pickle(pickle.dumps(value, protocol), known={}, where="here")
        assert found == value
        assert [type(one) for one in found] == [type(one) for one in value]


def test_a_value_that_is_there_twice_is_one(tmp_path):
    shared = ["x"]
    found = read_pickle(pickle.dumps([shared, shared]), known={}, where="here")
    assert found[0] is found[1]


def test_more_bytes_than_metadata_have_are_not_read(tmp_path):
    with (tmp_path / ".metadata").open("wb") as file:
        file.truncate(2**28 + 1)
    with pytest.raises(CorruptError, match="at most 268435456"):
        sk.open(tmp_path)


def test_long_strings_are_read():
    text = "é" * 300
    data = io.BytesIO()
    pickle.Pickler(data, 2).dump(text)
    assert struct.pack("<I", 600) in data.getvalue()
    assert read_pickle(data.getvalue(), known={}, where="here") == text

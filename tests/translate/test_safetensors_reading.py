"""Does a safetensors file, or a folder, read like a checkpoint, and is a bad one refused?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from safetensors.torch import load_file, save_file, save_model
from torch import nn

import shardkeep as sk
from shardkeep.errors import (
    CorruptError,
    InvalidError,
    NotFoundError,
    ShardkeepError,
    UnsupportedError,
)
from tests.translate.safetensors_tools import assert_same_bits, entry, every_dtype, write_file

ONE = {"a": torch.arange(6.0).reshape(2, 3)}
TWO = {"b": torch.arange(4)}


def loaded(path: Path) -> dict[str, torch.Tensor]:
    return sk.load(path)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model of two files with an index."""
    save_file(ONE, tmp_path / "model-00001-of-00002.safetensors")
    save_file(TWO, tmp_path / "model-00002-of-00002.safetensors")
    write_index(
        tmp_path,
        {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"},
    )
    return tmp_path


def write_index(folder: Path, weight_map: Any, name: str = "model") -> None:
    index = {"metadata": {"total_size": 56}, "weight_map": weight_map}
    (folder / f"{name}.safetensors.index.json").write_text(json.dumps(index))


def test_every_dtype_and_shape_comes_as_the_safetensors_package_wrote_it(tmp_path):
    save_file(every_dtype(), tmp_path / "one.safetensors", metadata={"format": "pt"})

    assert_same_bits(loaded(tmp_path / "one.safetensors"), every_dtype())


def test_data_that_start_at_any_byte_are_read(tmp_path):
    values = torch.arange(1000.0)
    header = {"flags": entry("BOOL", [1], 0, 1), "values": entry("F32", [1000], 1, 4001)}
    path = write_file(tmp_path / "odd.safetensors", header, b"\1" + values.numpy().tobytes())

    assert torch.equal(load_file(path)["values"], values)
    assert torch.equal(loaded(path)["values"], values)
    with sk.open(path) as opened:
        assert torch.equal(opened["values"][7:9], values[7:9])
        assert opened["values"].mapped()[999] == 999.0


def test_an_index_says_which_files_belong_together(model):
    save_file({"c": torch.ones(3)}, model / "other.safetensors")

    assert_same_bits(loaded(model), {**ONE, **TWO})


def test_an_index_of_another_name_is_found(tmp_path):
    save_file(ONE, tmp_path / "weights.safetensors")
    write_index(tmp_path, {"a": "weights.safetensors"}, name="consolidated")

    assert_same_bits(loaded(tmp_path), ONE)


def test_where_a_key_is_in_two_files_the_index_decides(model):
    save_file({**TWO, "a": torch.zeros(9)}, model / "model-00002-of-00002.safetensors")

    assert_same_bits(loaded(model), {**ONE, **TWO})


def test_a_folder_without_an_index_is_all_of_its_files(model):
    (model / "model.safetensors.index.json").unlink()
    save_file({"c": torch.ones(3)}, model / ".hidden.safetensors")

    assert_same_bits(loaded(model), {**ONE, **TWO})


def test_a_slice_reads_just_its_bytes(tmp_path):
    save_file({"w": torch.arange(2**20, dtype=torch.float32)}, tmp_path / "model.safetensors")
    into = {"w": torch.empty(2**20)}

    assert sk.load(tmp_path, into=into).nbytes_read == 2**22
    with sk.open(tmp_path) as opened:
        assert opened["w"][5:7].tolist() == [5.0, 6.0]


def test_names_that_the_package_left_out_for_tied_tensors_are_there(tmp_path):
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(3, 3, bias=False)
            self.second = nn.Linear(3, 3, bias=False)
            self.second.weight = self.first.weight

    tied = Tied()
    save_model(tied, str(tmp_path / "model.safetensors"))
    found = loaded(tmp_path)

    assert_same_bits(found, tied.state_dict())
    assert found["first.weight"] is found["second.weight"]


def test_metadata_that_all_files_share_is_kept(tmp_path):
    save_file(ONE, tmp_path / "x.safetensors", metadata={"format": "pt", "run": "7", "part": "1"})
    save_file(TWO, tmp_path / "y.safetensors", metadata={"format": "pt", "run": "7", "part": "2"})

    with sk.open(tmp_path) as opened:
        assert opened.metadata == {"format": "pt", "run": "7"}


def test_a_model_of_the_hugging_face_cache_is_read_through_its_links(tmp_path):
    folder = make_cache(tmp_path)

    assert_same_bits(loaded(folder), {**ONE, **TWO})
    with sk.open(folder) as opened:
        assert opened.verify()
    assert_same_bits(loaded(folder / "model-00001-of-00002.safetensors"), ONE)


def test_a_folder_that_is_itself_a_link_into_the_cache_is_read(tmp_path):
    (tmp_path / "mine").symlink_to(make_cache(tmp_path))

    assert_same_bits(loaded(tmp_path / "mine"), {**ONE, **TWO})


def make_cache(root: Path) -> Path:
    """One file by a link to the model's blobs, one by a further link to the blobs of all models."""
    home = root / "hub" / "models--me--tiny"
    folder = home / "snapshots" / ("1" * 40)
    shared = root / "hub" / "blobs" / "cc"
    for one in (folder, home / "blobs", shared):
        one.mkdir(parents=True)
    save_file(ONE, home / "blobs" / ("a" * 64))
    save_file(TWO, shared / ("c" * 64))
    (home / "blobs" / ("b" * 64)).symlink_to(f"../../blobs/cc/{'c' * 64}")
    weight_map = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (home / "blobs" / ("d" * 40)).write_text(json.dumps({"weight_map": weight_map}))
    (folder / weight_map["a"]).symlink_to(f"../../blobs/{'a' * 64}")
    (folder / weight_map["b"]).symlink_to(f"../../blobs/{'b' * 64}")
    (folder / "model.safetensors.index.json").symlink_to(f"../../blobs/{'d' * 40}")
    return folder


@pytest.mark.parametrize(
    "target",
    [
        "/etc/hostname",
        "../../../secret.safetensors",
        f"../../blobs/../../../{'a' * 64}",
        f"../../../blobs/{'a' * 64}",
        "../../blobs/x.safetensors",
        f"../../blobs/aa/{'a' * 64}",
    ],
)
def test_any_other_link_is_refused(tmp_path, target):
    folder = make_cache(tmp_path)
    save_file(ONE, tmp_path / "hub" / "secret.safetensors")
    (folder / "model-00001-of-00002.safetensors").unlink()
    (folder / "model-00001-of-00002.safetensors").symlink_to(target)

    with pytest.raises(CorruptError, match="is a link, but none that the Hugging Face cache"):
        loaded(folder)


def test_a_link_outside_of_a_cache_is_refused(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "blobs").mkdir()
    save_file(ONE, tmp_path / "blobs" / ("a" * 64))
    (tmp_path / "a" / "b" / "model.safetensors").symlink_to(f"../../blobs/{'a' * 64}")

    with pytest.raises(CorruptError, match="is a link, but none that the Hugging Face cache"):
        loaded(tmp_path / "a" / "b")


def test_a_blob_that_links_elsewhere_is_refused(tmp_path):
    folder = make_cache(tmp_path)
    blob = folder.parent.parent / "blobs" / ("a" * 64)
    blob.rename(tmp_path / "moved")
    blob.symlink_to(tmp_path / "moved")

    with pytest.raises(CorruptError, match="is a link, but none that the Hugging Face cache"):
        loaded(folder)


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "a/b.safetensors", ".."])
def test_an_index_that_names_a_file_elsewhere_is_refused(model, name):
    write_index(model, {"a": name})

    with pytest.raises(CorruptError, match=r"an index names .* files that lie beside it"):
        loaded(model)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": {"a": 1}}', "[" * 10**5, "\xff"])
def test_an_index_that_is_none_is_refused(model, text):
    (model / "model.safetensors.index.json").write_bytes(text.encode("latin-1"))

    with pytest.raises(CorruptError, match=r"model.safetensors.index.json is no index"):
        loaded(model)


def test_an_index_without_tensors_is_refused(model):
    write_index(model, {})

    with pytest.raises(CorruptError, match="lists no tensor"):
        loaded(model)


def test_a_missing_shard_is_named(model):
    (model / "model-00002-of-00002.safetensors").unlink()

    with pytest.raises(NotFoundError, match=r"lacks the file 'model-00002-of-00002.safetensors'"):
        loaded(model)


def test_a_missing_shard_is_noticed_without_an_index(model):
    (model / "model.safetensors.index.json").unlink()
    (model / "model-00002-of-00002.safetensors").unlink()

    with pytest.raises(NotFoundError, match=r"has 1 of the 2 files model-\.\.\.-of-00002"):
        loaded(model)


def test_an_index_of_another_model_is_noticed(model):
    write_index(model, {"z": "model-00001-of-00002.safetensors"})

    with pytest.raises(CorruptError, match=r"'z' is in model-00001-of-00002.safetensors, but it"):
        loaded(model)


def test_a_key_in_two_files_is_refused(tmp_path):
    save_file(ONE, tmp_path / "x.safetensors")
    save_file(ONE, tmp_path / "y.safetensors")

    with pytest.raises(CorruptError, match=r"'a' is in both x.safetensors and y.safetensors"):
        loaded(tmp_path)


def test_a_folder_that_holds_two_models_is_refused(model):
    save_file(ONE, model / "model.safetensors")

    with pytest.raises(InvalidError, match="which of them is the model"):
        loaded(model)
    assert_same_bits(loaded(model / "model.safetensors"), ONE)


def test_two_indices_are_refused(tmp_path):
    save_file(ONE, tmp_path / "x.safetensors")
    write_index(tmp_path, {"a": "x.safetensors"}, name="fp16")
    write_index(tmp_path, {"a": "x.safetensors"}, name="fp32")

    with pytest.raises(InvalidError, match="has several indices"):
        loaded(tmp_path)


BAD_HEADERS: dict[str, tuple[Any, bytes, str]] = {
    "no JSON": (b"{", b"", "no JSON of safetensors"),
    "a list": (b"[]", b"", "no JSON of safetensors"),
    "no UTF-8": (b'{"\xff": 1}', b"", "no JSON of safetensors"),
    "deep": (b'{"a":' + b"[" * 10**5, b"", "no JSON of safetensors|nested too deeply"),
    "no dtype": ({"a": {"shape": [1], "data_offsets": [0, 4]}}, bytes(4), "no JSON of"),
    "metadata": ({"__metadata__": {"a": 1}}, b"", "no JSON of safetensors"),
    "unknown dtype": ({"a": entry("F99", [1], 0, 4)}, bytes(4), "unknown dtype 'F99'"),
    "hole": ({"a": entry("F32", [1], 4, 8)}, bytes(8), "does not fit its place"),
    "overlap": (
        {"a": entry("F32", [2], 0, 8), "b": entry("F32", [1], 4, 8)},
        bytes(8),
        "does not fit its place",
    ),
    "twice": (
        b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
        b'"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}',
        bytes(2),
        "does not fit its place",
    ),
    "too small": ({"a": entry("F32", [3], 0, 8)}, bytes(8), "does not fit its place"),
    "cut off": ({"a": entry("F32", [2], 0, 8)}, bytes(7), "it was cut off"),
    "longer": ({"a": entry("F32", [2], 0, 8)}, bytes(9), "something was added"),
    "negative": ({"a": entry("F32", [-1, -2], 0, 8)}, bytes(8), "not from 0 to"),
    "backwards": ({"a": entry("F32", [2], 0, -8)}, bytes(8), "does not fit its place"),
    "overflow": ({"a": entry("F32", [2**62, 0, 4], 0, 0)}, b"", "more than"),
    "huge number": ({"a": entry("F32", [10**400], 0, 8)}, bytes(8), "no JSON of|not from 0"),
    "many dims": ({"a": entry("F32", [1] * 100_000, 0, 4)}, bytes(4), "a shape of 100000 dims"),
}


@pytest.mark.parametrize("case", BAD_HEADERS)
def test_a_header_that_makes_no_sense_is_refused(tmp_path, case):
    header, data, message = BAD_HEADERS[case]
    path = write_file(tmp_path / "bad.safetensors", header, data)

    with pytest.raises(CorruptError, match=message):
        loaded(path)


@pytest.mark.parametrize(
    "content",
    [b"", b"1234567", (2**63).to_bytes(8, "little") + b"{}", (3).to_bytes(8, "little") + b"{}"],
)
def test_a_file_without_its_header_is_refused(tmp_path, content):
    (tmp_path / "bad.safetensors").write_bytes(content)

    with pytest.raises(CorruptError, match="is no safetensors file, or was cut off"):
        loaded(tmp_path / "bad.safetensors")


def test_a_git_lfs_pointer_is_told(tmp_path):
    (tmp_path / "model.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 5\n"
    )

    with pytest.raises(CorruptError, match="run `git lfs pull`"):
        loaded(tmp_path)


def test_items_smaller_than_a_byte_are_named(tmp_path):
    path = write_file(tmp_path / "x.safetensors", {"a": entry("F4", [2], 0, 1)}, b"\0")

    with pytest.raises(UnsupportedError, match="'a' is F4, whose items are smaller than a byte"):
        loaded(path)


@given(data=st.data())
def test_no_damage_raises_anything_but_our_errors(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("fuzz") / "x.safetensors"
    save_file({**ONE, **TWO}, path, metadata={"a": "b"})
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        found = loaded(path)
    except ShardkeepError:
        return
    assert all(isinstance(tensor, torch.Tensor) for tensor in found.values())


def test_verify_finds_a_file_that_was_cut_off_after_it_was_opened(model):
    with sk.open(model) as opened:
        assert opened.verify()
        os.truncate(model / "model-00002-of-00002.safetensors", 20)
        (problem,) = opened.verify().problems

    assert "model-00002-of-00002.safetensors" in problem
    assert "cut off" in problem


def test_safetensors_are_read_verified_and_exported_without_torch(model):
    code = f"""
import sys
from pathlib import Path
from shardkeep.transfer.lazy import Checkpoint
from shardkeep.transfer.progress import Meter
from shardkeep.translate.exporting import export
from shardkeep.translate.opening import open_source
opened = open_source({str(model)!r}, values=False)
checkpoint = Checkpoint(opened, threads=2, owns_storage=True)
assert checkpoint.verify()
assert checkpoint["a"].numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
meter = Meter("exporting", None, show=False)
print(export(opened, Path({str(model / "out")!r}), to="hf", dtype="bf16", meter=meter).cast)
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert done.stdout == "('a',)\n"


def test_bf16_goes_into_float32_only_if_told(tmp_path):
    save_file({"w": torch.arange(5).to(torch.bfloat16)}, tmp_path / "model.safetensors")
    into = {"w": torch.zeros(5)}

    with pytest.raises(sk.ConflictError, match="cast=True converts it"):
        sk.load(tmp_path, into=into)
    assert sk.load(tmp_path, into=into, cast=True).cast == ["w"]
    assert torch.equal(into["w"], torch.arange(5.0))

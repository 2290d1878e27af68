"""Is an export what the safetensors package and the checkpoint agree on, or is it not there?"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import shardkeep as sk
from shardkeep.errors import (
    ConflictError,
    CorruptError,
    InvalidError,
    NotFoundError,
    StorageError,
    UnsupportedError,
)
from shardkeep.layouts import Mesh, MeshLayout, Replicate, Split
from shardkeep.storage import LocalStorage
from shardkeep.storage.local_sink import LocalSink
from shardkeep.transfer.progress import Meter
from shardkeep.translate import export_target
from shardkeep.translate.exporting import export
from shardkeep.translate.opening import open_source
from tests.transfer.worlds import Laid, kept_by, save_in_turn
from tests.translate.safetensors_tools import (
    DTYPES,
    assert_same_bits,
    bits_of,
    every_dtype,
    exported,
    saved,
)

LEAST = 9 * 2**20
"""The memory that an export takes at least."""

INDEX = "model.safetensors.index.json"


def loaded_folder(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of a folder, by the safetensors package."""
    return {
        key: tensor
        for file in sorted(folder.glob("*.safetensors"))
        for key, tensor in load_file(file).items()
    }


def names(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir())


@pytest.fixture
def tensors() -> dict[str, torch.Tensor]:
    return {f"layer.{n}": torch.arange(256.0) + n for n in range(5)}


@pytest.fixture
def ckpt(tmp_path: Path, tensors: Any) -> Path:
    return saved({"model": tensors, "step": 7, "extra": torch.ones(2)}, tmp_path / "ckpt")


def test_every_dtype_and_shape_is_what_the_safetensors_package_reads(tmp_path):
    state = every_dtype()
    report = exported(saved(state, tmp_path / "ckpt"), tmp_path / "out")

    assert names(tmp_path / "out") == ["model.safetensors"]
    assert_same_bits(load_file(tmp_path / "out" / "model.safetensors"), state)
    assert (report.tensors, report.cast, report.skipped) == (len(state), (), ())
    assert report.nbytes == (tmp_path / "out" / "model.safetensors").stat().st_size
    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as opened:
        assert opened.metadata() == {"format": "pt"}


def test_what_was_exported_loads_and_exports_again_the_same(tmp_path):
    exported(saved(every_dtype(), tmp_path / "ckpt"), tmp_path / "one")
    exported(tmp_path / "one", tmp_path / "two")

    assert_same_bits(sk.load(tmp_path / "one"), every_dtype())
    one, two = (tmp_path / name / "model.safetensors" for name in ("one", "two"))
    assert load_file(one).keys() == load_file(two).keys()
    assert_same_bits(load_file(two), every_dtype())


def test_shards_hold_as_much_as_was_said_and_the_index_lists_them(tmp_path, ckpt, tensors):
    report = exported(ckpt, tmp_path / "out", prefix="model.", max_shard_nbytes=2048)

    files = [f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)]
    assert list(report.files) == files
    assert names(tmp_path / "out") == [*files, INDEX]
    index = json.loads((tmp_path / "out" / INDEX).read_text())
    assert index["metadata"] == {"total_size": 5 * 1024}
    assert index["weight_map"] == {f"layer.{n}": files[n // 2] for n in range(5)}
    assert_same_bits(loaded_folder(tmp_path / "out"), tensors)
    assert_same_bits(sk.load(tmp_path / "out"), tensors)


def test_a_tensor_larger_than_a_shard_is_alone(tmp_path, ckpt, tensors):
    report = exported(ckpt, tmp_path / "out", prefix="model.", max_shard_nbytes=1000)

    assert len(report.files) == 5
    assert_same_bits(loaded_folder(tmp_path / "out"), tensors)


def test_one_file_is_one_file_whatever_its_size(tmp_path, ckpt, tensors):
    dest = tmp_path / "one.safetensors"
    exported(ckpt, dest, "safetensors", prefix="model.", max_shard_nbytes=1)

    assert_same_bits(load_file(dest), tensors)
    assert names(tmp_path) == ["ckpt", "one.safetensors"]


MESH = Mesh((2, 2), (0, 1, 2, 3))
LAYOUTS = {
    "rows": (Split(0), Split(0)),
    "columns": (Split(1), Split(1)),
    "rows and columns": (Split(0), Split(1)),
    "replicas of columns": (Replicate(), Split(1)),
}


@pytest.mark.parametrize("placements", LAYOUTS.values(), ids=LAYOUTS)
def test_a_tensor_that_many_ranks_wrote_is_put_together(tmp_path, placements):
    """In pieces of 1 MiB, for lack of memory."""
    whole = torch.arange(1021 * 1031, dtype=torch.int32).reshape(1021, 1031)
    small = torch.arange(35, dtype=torch.float64).reshape(7, 5)
    laid = {
        "w": Laid(whole, MeshLayout((1021, 1031), MESH, placements)),
        "s": Laid(small, MeshLayout((7, 5), MESH, placements)),
    }
    with LocalStorage(tmp_path / "ckpt", create=True, durable=False) as storage:
        save_in_turn(lambda rank: kept_by(rank, laid), storage, 4, file_count=2)
    exported(tmp_path / "ckpt", tmp_path / "out", max_memory_nbytes=LEAST)

    assert_same_bits(load_file(tmp_path / "out" / "model.safetensors"), {"w": whole, "s": small})


def test_an_export_keeps_within_the_memory_that_it_was_given(tmp_path):
    state = {f"w{n}": torch.full((2**20,), float(n)) for n in range(8)}
    state |= {f"s{n}": torch.full((100,), float(n)) for n in range(200)}
    ckpt = saved(state, tmp_path / "ckpt")
    tracemalloc.start()
    try:
        exported(ckpt, tmp_path / "out", max_memory_nbytes=24 * 2**20, threads=2)
        plain = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        exported(ckpt, tmp_path / "cast", max_memory_nbytes=24 * 2**20, dtype="bf16")
        cast = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert plain < 24 * 2**20
    assert cast < 24 * 2**20
    assert_same_bits(loaded_folder(tmp_path / "out"), state)


def test_too_little_memory_is_refused_at_once(tmp_path, ckpt):
    with pytest.raises(InvalidError, match="an export takes at least 9 MiB"):
        exported(ckpt, tmp_path / "out", max_memory_nbytes=LEAST - 1)
    with pytest.raises(InvalidError, match="threads must be at least 1"):
        exported(ckpt, tmp_path / "out", threads=0)
    with pytest.raises(InvalidError, match="a shard has at least 1 byte"):
        exported(ckpt, tmp_path / "out", max_shard_nbytes=0)


@pytest.mark.parametrize("to", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("dtype", [d for d in DTYPES if d.is_floating_point])
def test_a_cast_is_the_one_that_torch_makes(tmp_path, dtype, to):
    state = {"w": bits_of(dtype, (50, 100)), "edge": edges(dtype)}
    state |= {"scalar": bits_of(dtype, ()), "empty": bits_of(dtype, (3, 0))}
    dest = tmp_path / "one.safetensors"
    exported(saved(state, tmp_path / "ckpt"), dest, "safetensors", dtype=str(to))
    found = load_file(dest)

    for key, tensor in state.items():
        expected = tensor.to(to)
        assert found[key].dtype == to
        assert torch.equal(found[key].isnan(), expected.isnan())
        numbers = ~expected.isnan()
        assert torch.equal(bits(found[key])[numbers], bits(expected)[numbers])


def edges(dtype: torch.dtype) -> torch.Tensor:
    """Where rounding goes wrong: ties, zeros, the smallest and the largest numbers."""
    found = [0.0, -0.0, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, 65504.0, 65519.9, 65520.0]
    found += [2**-24, 2**-25, 3 * 2**-26, 2**-133, 2**-134, 3.3895e38, 3.3961776e38, 1e-45]
    made = torch.tensor([*found, float("inf"), float("nan")], dtype=torch.float64)
    return torch.cat([made, -made]).to(dtype)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.itemsize])


def test_what_is_no_float_is_not_cast_and_overflows_are_named(tmp_path):
    state = {
        "count": torch.arange(3),
        "mask": torch.tensor([True, False]),
        "wave": torch.ones(2, dtype=torch.complex64),
        "same": torch.ones(2, dtype=torch.float16),
        "large": torch.tensor([1e30, float("inf")]),
        "small": torch.tensor([1.0, float("inf")]),
    }
    report = exported(saved(state, tmp_path / "ckpt"), tmp_path / "out", dtype="fp16")

    assert (report.cast, report.overflowed) == (("large", "small"), ("large",))
    found = loaded_folder(tmp_path / "out")
    halves = {key: state[key].half() for key in ("large", "small")}
    assert_same_bits(found, {**state, **halves})


def test_an_unknown_dtype_is_refused(tmp_path, ckpt):
    with pytest.raises(InvalidError, match="not cast to 'int8'; take one of bf16, fp16"):
        exported(ckpt, tmp_path / "out", dtype="int8")


def test_keys_prefix_and_rename_say_what_is_written(tmp_path, ckpt, tensors):
    def rename(name: str) -> str | None:
        return None if name == "layer.3" else name.replace("layer", "h")

    report = exported(
        ckpt, tmp_path / "out", keys=["model.layer.[234]"], prefix="model.", rename=rename
    )

    assert report.skipped == ("model.layer.3",)
    expected = {"h.2": tensors["layer.2"], "h.4": tensors["layer.4"]}
    assert_same_bits(loaded_folder(tmp_path / "out"), expected)


def test_values_are_skipped_and_said_so(tmp_path, ckpt):
    report = exported(ckpt, tmp_path / "out")

    assert report.skipped == ("step",)
    assert report.tensors == 6


def test_arrays_and_lists_go_by_their_dotted_names(tmp_path):
    state = {"a": [np.arange(3), {"b": torch.ones(2)}], 5: torch.zeros(1)}
    exported(saved(state, tmp_path / "ckpt"), tmp_path / "out")

    assert set(loaded_folder(tmp_path / "out")) == {"a.0", "a.1.b", "5"}


def test_a_model_without_a_single_cell_is_exported(tmp_path):
    state = {"a": torch.ones(0), "b": torch.ones(3, 0, dtype=torch.int8)}
    exported(saved(state, tmp_path / "ckpt"), tmp_path / "out", max_shard_nbytes=1)

    assert_same_bits(load_file(tmp_path / "out" / "model.safetensors"), state)
    assert_same_bits(sk.load(tmp_path / "out"), state)


def test_a_model_is_cast_in_its_own_folder(tmp_path, ckpt, tensors):
    exported(ckpt, tmp_path / "out", prefix="model.", max_shard_nbytes=2048)
    exported(tmp_path / "out", tmp_path / "out", dtype="bf16", force=True)

    expected = {key: tensor.bfloat16() for key, tensor in tensors.items()}
    assert_same_bits(loaded_folder(tmp_path / "out"), expected)
    assert names(tmp_path / "out") == ["model.safetensors"]


def test_a_tied_tensor_is_written_once_and_comes_back_tied(tmp_path):
    tensor = torch.arange(6.0)
    ckpt = saved({"first": tensor, "last": torch.ones(1), "twin": tensor}, tmp_path / "ckpt")
    report = exported(ckpt, tmp_path / "out", max_shard_nbytes=24)

    assert report.tied == {"twin": "first"}
    assert set(loaded_folder(tmp_path / "out")) == {"first", "last"}
    found = sk.load(tmp_path / "out")
    assert found["twin"] is found["first"]
    assert torch.equal(found["twin"], tensor)


@pytest.mark.parametrize(
    ("state", "options", "error", "message"),
    [
        ({"w": torch.ones(2)}, {"prefix": "model."}, NotFoundError, "by prefix='model.'; there"),
        ({"w": torch.ones(2)}, {"keys": ["x*"]}, NotFoundError, "asked for by keys="),
        ({"step": 3}, {}, NotFoundError, "no tensor of the checkpoint is asked for"),
        ({"w": torch.eye(2).to_sparse()}, {}, UnsupportedError, "'w' is sparse"),
        ({"w": torch.ones(2, dtype=torch.complex128)}, {}, UnsupportedError, "'w' is C128"),
        ({"w": torch.ones(2), "v": torch.ones(2)}, {"rename": lambda _: "x"}, ConflictError, "'x'"),
        ({"w": torch.ones(2)}, {"rename": lambda _: ""}, InvalidError, "cannot be called ''"),
        ({"w": torch.ones(2)}, {"rename": lambda _: "__metadata__"}, InvalidError, "called"),
        ({"w": torch.ones(2)}, {"rename": lambda _: 5}, InvalidError, "cannot be called 5"),
    ],
)
def test_what_cannot_be_exported_is_named_before_anything_is_written(
    tmp_path, state, options, error, message
):
    ckpt = saved(state, tmp_path / "ckpt")

    with pytest.raises(error, match=message):
        exported(ckpt, tmp_path / "out", **options)
    assert names(tmp_path) == ["ckpt"]


def test_an_existing_model_is_not_overwritten_unless_forced(tmp_path, ckpt, tensors):
    out = tmp_path / "out"
    exported(ckpt, out, prefix="model.", max_shard_nbytes=2048)
    (out / "config.json").write_text("{}")
    (out / "adapter_model.safetensors").write_bytes(b"mine")
    before = {one.name: one.read_bytes() for one in out.iterdir()}

    with pytest.raises(ConflictError, match="holds the weights of a model already"):
        exported(ckpt, out)
    assert {one.name: one.read_bytes() for one in out.iterdir()} == before
    exported(ckpt, out, prefix="model.", keys=["*.1"], force=True)
    assert names(out) == ["adapter_model.safetensors", "config.json", "model.safetensors"]
    assert_same_bits(load_file(out / "model.safetensors"), {"layer.1": tensors["layer.1"]})


def test_a_folder_without_weights_gets_them_and_keeps_its_files(tmp_path, ckpt, tensors):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "config.json").write_text("{}")
    exported(ckpt, tmp_path / "out", prefix="model.", max_shard_nbytes=3000)

    assert names(tmp_path / "out")[0] == "config.json"
    assert len(names(tmp_path / "out")) == 1 + 3 + 1
    assert_same_bits(loaded_folder(tmp_path / "out"), tensors)


@pytest.mark.parametrize("force", [False, True])
def test_a_checkpoint_is_never_exported_over(tmp_path, ckpt, force):
    before = names(ckpt)

    with pytest.raises(ConflictError, match="is a checkpoint of shardkeep"):
        exported(ckpt, ckpt, force=force)
    assert names(ckpt) == before


def test_an_existing_file_is_not_overwritten_unless_forced(tmp_path, ckpt, tensors):
    dest = tmp_path / "one.safetensors"
    dest.write_bytes(b"mine")

    with pytest.raises(ConflictError, match="is there already; name another file, or force"):
        exported(ckpt, dest, "safetensors")
    assert dest.read_bytes() == b"mine"
    exported(ckpt, dest, "safetensors", prefix="model.", force=True)
    assert_same_bits(load_file(dest), tensors)


def test_a_file_in_place_of_a_folder_and_the_other_way_are_refused(tmp_path, ckpt):
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder.safetensors").mkdir()

    with pytest.raises(ConflictError, match="is no folder"):
        exported(ckpt, tmp_path / "file", force=True)
    with pytest.raises(ConflictError, match="is no regular file"):
        exported(ckpt, tmp_path / "folder.safetensors", "safetensors", force=True)
    with pytest.raises(InvalidError, match="name a file that ends with"):
        exported(ckpt, tmp_path / "out", "safetensors")


def test_a_disk_that_is_too_small_is_known_before_the_export_starts(tmp_path, ckpt, monkeypatch):
    found = os.statvfs(tmp_path)

    class Small:
        f_bavail, f_frsize = 1, 4096

    monkeypatch.setattr(export_target.os, "statvfs", lambda _: Small)
    with pytest.raises(StorageError, match=r"takes \d+ bytes, but 4096 are free"):
        exported(ckpt, tmp_path / "deep" / "out")
    assert found.f_bavail > 1
    assert names(tmp_path) == ["ckpt"]


def test_an_export_that_fails_on_its_way_leaves_nothing(tmp_path, ckpt, monkeypatch):
    write = LocalSink.write
    calls: list[int] = []

    def full(self: Any, offset: int, buffers: Any) -> None:
        calls.append(offset)
        if len(calls) == 5:
            raise StorageError(28, "no space left", "here")
        write(self, offset, buffers)

    monkeypatch.setattr(LocalSink, "write", full)
    with pytest.raises(StorageError, match="no space left"):
        exported(ckpt, tmp_path / "out", max_shard_nbytes=1024)
    assert names(tmp_path) == ["ckpt"]


def test_a_damaged_checkpoint_is_not_exported(tmp_path, ckpt):
    (data, *_) = ckpt.glob("*.safetensors")
    content = bytearray(data.read_bytes())
    content[-5] ^= 1
    data.write_bytes(content)

    with pytest.raises(CorruptError, match="are not what was written"):
        exported(ckpt, tmp_path / "out")
    assert names(tmp_path) == ["ckpt"]


@pytest.mark.parametrize("at", [0, 1], ids=["header", "data"])
def test_what_the_disk_changed_is_noticed(tmp_path, ckpt, monkeypatch, at):
    write = LocalSink.write
    calls: list[int] = []

    def flip(self: Any, offset: int, buffers: Any) -> None:
        (data,) = buffers
        content = bytearray(data)
        if len(calls) == at:
            content[30] ^= 2
        calls.append(offset)
        write(self, offset, [content])

    monkeypatch.setattr(LocalSink, "write", flip)
    with pytest.raises(CorruptError, match=r"model\.safetensors"):
        exported(ckpt, tmp_path / "out")
    assert names(tmp_path) == ["ckpt"]
    calls.clear()
    exported(ckpt, tmp_path / "out", verify=False)
    assert names(tmp_path) == ["ckpt", "out"]


def test_a_killed_export_leaves_nothing_that_looks_finished(tmp_path, ckpt):
    (tmp_path / "out").mkdir()
    code = f"""
import os, signal
from pathlib import Path
from shardkeep.storage.local_sink import LocalSink
from shardkeep.transfer.progress import Meter
from shardkeep.translate.exporting import export
from shardkeep.translate.opening import open_source
finish, calls = LocalSink.finish, []
def killed(self):
    calls.append(1)
    if len(calls) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    finish(self)
LocalSink.finish = killed
meter, out = Meter("exporting", None, show=False), Path({str(tmp_path / "out")!r})
export(open_source({str(ckpt)!r}), out, to="hf", max_shard_nbytes=1024, meter=meter)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert done.returncode == -signal.SIGKILL, done.stderr
    assert all(name.startswith(".") for name in names(tmp_path / "out"))
    exported(ckpt, tmp_path / "out")
    assert "model.safetensors" in names(tmp_path / "out")


def test_progress_ends_at_all_bytes(tmp_path, ckpt):
    seen: list[tuple[int, int]] = []
    opened = open_source(ckpt)
    with Meter("exporting", lambda done, total: seen.append((done, total)), show=False) as meter:
        report = export(opened, tmp_path / "out", to="hf", meter=meter)
    opened.storage.close()

    assert seen[-1] == (2 * report.nbytes, 2 * report.nbytes)


def test_an_unknown_format_is_refused(tmp_path, ckpt):
    with pytest.raises(InvalidError, match="no format 'gguf'; take hf, safetensors, dcp, torch"):
        exported(ckpt, tmp_path / "out", "gguf")

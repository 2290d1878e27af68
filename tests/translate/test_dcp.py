"""A folder of DCP is read in place, checked, imported, and written so that DCP loads it."""

# torch does not say what it exports.
# pyright: reportPrivateImportUsage=false

import os
import subprocess
import sys
import warnings
import zipfile
from collections import OrderedDict
from functools import partial
from io import BytesIO

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import FileSystemWriter, SerializationFormat
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

import shardkeep as sk
from shardkeep.errors import (
    ConflictError,
    CorruptError,
    InvalidError,
    NotFoundError,
    ShardkeepError,
    StorageError,
    UnsupportedError,
)
from shardkeep.state.dtypes import TORCH_DTYPES
from shardkeep.translate import dcp_writing
from shardkeep.translate.dcp_writing import export_dcp
from shardkeep.translate.torch_archive import Archive
from tests.distributed.tensors import distinct
from tests.translate.exporting import export_by
from tests.translate.states import assert_equal

warnings.simplefilter("ignore", UserWarning)

export = partial(export_by, export_dcp)


def all_kinds():
    return {
        "model": {"layers.0.w": distinct((4, 6)), "b": torch.tensor(3, dtype=torch.bfloat16)},
        "none": {"rows": torch.empty(0, 4), "columns": torch.empty(4, 0)},
        "columns first": distinct((4, 6)).t(),
        "channels last": distinct((2, 3, 4, 5)).to(memory_format=torch.channels_last),
        "within": distinct((20,))[3:9],
        "dtypes": {name: distinct((3, 2), dtype) for name, dtype in TORCH_DTYPES.items()},
        "optim": {
            "state": {0: {"step": torch.tensor(2.0)}, 1: {"step": torch.tensor(3.0)}},
            "param_groups": [{"lr": 0.1, "betas": (0.9, 0.99), "params": [0, 1]}],
        },
        "step": 2**70,
        "nothing": None,
        "text": "é",
        "size": torch.Size((2, 3)),
        "dtype": torch.bfloat16,
        "mixed": [torch.ones(2), 5, [{"deep": torch.zeros(1)}]],
        "pair": (distinct((3,), torch.int64), {"x": torch.ones(2, dtype=torch.bool)}),
        "ordered": (OrderedDict(a=1, b=2),),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("dcp")
    dcp.save(all_kinds(), checkpoint_id=path)
    return path


def test_what_dcp_saved_is_loaded_bit_for_bit(folder):
    assert_equal(sk.load(folder), all_kinds())


def test_it_fills_a_state_in_place(folder):
    state = all_kinds()
    for leaf in state["dtypes"].values():
        leaf.view(torch.uint8).zero_()
    state["columns first"].zero_()
    state["channels last"].zero_()
    state["step"], state["pair"] = 0, (torch.zeros(3, dtype=torch.int64), {"x": torch.zeros(2) > 1})
    sk.load(folder, into=state)
    assert_equal(state, all_kinds())


def test_slices_are_read_alone(folder):
    with sk.open(folder) as checkpoint:
        expected = all_kinds()
        weights, turned = expected["model"]["layers.0.w"], expected["columns first"]
        assert checkpoint["model.layers.0.w"][1:3, 2].tolist() == weights[1:3, 2].tolist()
        assert checkpoint["columns first"][2:4, 1:].tolist() == turned[2:4, 1:].tolist()
        assert checkpoint["pair.0"][1:].tolist() == expected["pair"][0][1:].tolist()
        with pytest.raises(InvalidError, match="index it instead"):
            checkpoint["columns first"].mapped()


def test_it_verifies(folder):
    with sk.open(folder) as checkpoint:
        report = checkpoint.verify()
        assert report.problems == ()
        assert report.nbytes > 1000


def test_tensors_alone_take_no_torch(folder):
    code = f"""
import sys
from pathlib import Path
from shardkeep.translate.opening import open_source
from shardkeep.transfer.lazy import Checkpoint
with Checkpoint(open_source({str(folder)!r}, values=False), threads=1, owns_storage=True) as c:
    assert c.verify().problems == ()
    print(c["within"].numpy().tobytes().hex(), c["mixed.2.0.deep"].shape, "pair.0" in c)
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    expected = all_kinds()["within"].numpy().tobytes().hex()
    assert done.stdout.split() == [expected, "(1,)", "False"]


def copied(folder, tmp_path):
    """A copy to be damaged, and its one data file."""
    target = tmp_path / "copy"
    target.mkdir()
    for file in folder.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    (data,) = target.glob("*.distcp")
    return target, data


def test_a_missing_file_is_named(folder, tmp_path):
    target, data = copied(folder, tmp_path)
    data.unlink()
    with pytest.raises(NotFoundError, match=r"lacks the file '__0_0\.distcp'.*copy it there"):
        sk.open(target)


def test_a_file_that_was_cut_off_is_told_at_once(folder, tmp_path):
    target, data = copied(folder, tmp_path)
    os.truncate(data, data.stat().st_size - 1)
    with pytest.raises(CorruptError, match="the file was cut off"):
        sk.open(target)


def test_a_file_that_is_a_link_is_refused(folder, tmp_path):
    target, data = copied(folder, tmp_path)
    data.rename(tmp_path / "elsewhere")
    data.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CorruptError, match="link"):
        sk.open(target)


def test_a_flipped_bit_is_found_by_verify_and_keeps_an_import_from_beginning(folder, tmp_path):
    target, data = copied(folder, tmp_path)
    content = bytearray(data.read_bytes())
    at = content.index(distinct((4, 6)).numpy().tobytes())
    content[at + 7] ^= 4
    data.write_bytes(content)
    with sk.open(target) as checkpoint:
        (problem,) = checkpoint.verify().problems
        assert "'model.layers.0.w'" in problem
        assert "CRC-32 differs" in problem
    with pytest.raises(CorruptError, match=r"nothing was imported.*layers\.0\.w"):
        sk.import_checkpoint(target, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize("step", [97, 211])
def test_whatever_byte_is_damaged_values_are_right_or_it_is_an_error_of_ours(tmp_path, step):
    state = {"w": distinct((3, 5)), "v": distinct((2, 2)).t()}
    dcp.save(state, checkpoint_id=tmp_path)
    (data,) = tmp_path.glob("*.distcp")
    whole = data.read_bytes()
    found = 0
    for at in range(0, len(whole), step):
        broken = bytearray(whole)
        broken[at] ^= 0x5A
        data.write_bytes(broken)
        try:
            with sk.open(tmp_path) as checkpoint:
                is_sound = not checkpoint.verify().problems
                loaded = sk.load(tmp_path)
        except ShardkeepError:
            found += 1
            continue
        if is_sound:
            assert_equal(loaded, state)
        else:
            found += 1
    assert found > 3


def test_chunks_that_leave_a_gap_are_corrupt(tmp_path):
    import pickle

    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

    dcp.save({"w": distinct((4,))}, checkpoint_id=tmp_path)
    metadata = pickle.loads((tmp_path / ".metadata").read_bytes())
    metadata.state_dict_metadata["w"].size = torch.Size((5,))
    (tmp_path / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(CorruptError, match="do not make it up"):
        sk.open(tmp_path)
    metadata.state_dict_metadata["w"].size = torch.Size((3,))
    metadata.state_dict_metadata["w"].chunks = [
        ChunkStorageMetadata(torch.Size((0,)), torch.Size((3,)))
    ]
    (tmp_path / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(CorruptError, match=r"holds F32 of shape \(4,\).*not of one save"):
        sk.load(tmp_path)


def test_other_serializations_are_named(tmp_path):
    writer = FileSystemWriter(tmp_path, serialization_format=SerializationFormat.SAFETENSORS)
    dcp.save({"w": torch.ones(300)}, storage_writer=writer)
    with pytest.raises(UnsupportedError, match="another serialization format"):
        sk.load(tmp_path)


def test_several_files_and_threads_are_read(tmp_path):
    state = {f"w{at}": distinct((at + 1, 3)) for at in range(9)}
    writer = FileSystemWriter(tmp_path, thread_count=3, single_file_per_rank=False)
    dcp.save(state, storage_writer=writer)
    assert len(list(tmp_path.glob("*.distcp"))) == 9
    assert_equal(sk.load(tmp_path), state)


def test_files_without_checksums_are_read(tmp_path):
    torch.serialization.set_crc32_options(False)
    try:
        dcp.save({"w": distinct((4,))}, checkpoint_id=tmp_path)
    finally:
        torch.serialization.set_crc32_options(True)
    with sk.open(tmp_path) as checkpoint:
        assert checkpoint.verify().problems == ()
    assert_equal(sk.load(tmp_path), {"w": distinct((4,))})


def test_an_archive_of_more_than_32_bits_is_understood():
    """The sizes of such entries stand in a field of their own, as zipfile writes it on demand."""
    made = BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        with archive.open("archive/data.pkl", "w", force_zip64=True) as entry:
            entry.write(b"abc")
        archive.writestr("archive/version", b"3\n")
    data = made.getvalue()
    found = Archive(lambda start, nbytes: data[start : start + nbytes], len(data), "here")
    assert found.content("data.pkl", max_nbytes=10) == b"abc"
    # The same with the directory's own fields full, as torch writes it beyond 4 GiB.
    listed = data.index(b"PK\x01\x02")
    large = bytearray(data)
    large[listed + 20 : listed + 28] = b"\xff" * 8
    name_end = listed + 46 + len("archive/data.pkl")
    extra = b"\x01\x00\x10\x00" + (3).to_bytes(8, "little") * 2
    large[listed + 30 : listed + 32] = len(extra).to_bytes(2, "little")
    large[name_end:name_end] = extra
    end = large.index(b"PK\x05\x06")
    nbytes = int.from_bytes(large[end + 12 : end + 16], "little") + len(extra)
    large[end + 12 : end + 16] = nbytes.to_bytes(4, "little")
    raw = bytes(large)
    found = Archive(lambda start, nbytes: raw[start : start + nbytes], len(raw), "here")
    assert found.content("data.pkl", max_nbytes=10) == b"abc"


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    state = all_kinds()
    state["tied"] = state["model"]["layers.0.w"]
    state["large"] = distinct((1000, 300))
    path = tmp_path_factory.mktemp("ours")
    sk.save({**state, "seed": sk.per_rank(1)}, path)
    return path, state


def test_dcp_loads_an_export(ours, tmp_path):
    path, state = ours
    report = export(path, tmp_path / "dcp")
    assert report.skipped == ("seed",)
    assert report.tied == {"tied": "model.layers.0.w"}
    loaded = _load_state_dict_from_keys(checkpoint_id=tmp_path / "dcp")
    # DCP makes text of the numbers.
    loaded["optim"]["state"] = {int(k): v for k, v in loaded["optim"]["state"].items()}
    assert_equal(loaded, state)
    again = sk.load(tmp_path / "dcp")
    assert_equal(again, state)
    assert again["tied"] is again["model"]["layers.0.w"]


def test_dcp_loads_an_export_into_a_state_that_is_there(ours, tmp_path):
    path, state = ours
    export(path, tmp_path / "dcp")
    target = {
        "large": torch.zeros(1000, 300),
        "optim": {"param_groups": [{"lr": 0.0, "betas": None, "params": []}]},
        "step": 0,
    }
    dcp.load(target, checkpoint_id=tmp_path / "dcp")
    expected = {"large": state["large"], "step": state["step"]}
    expected["optim"] = {"param_groups": state["optim"]["param_groups"]}
    assert_equal({key: target[key] for key in expected}, expected)


def test_a_large_tensor_is_several_chunks(ours, tmp_path):
    export(ours[0], tmp_path / "dcp", keys=["large"])
    with sk.open(tmp_path / "dcp") as checkpoint:
        assert len(checkpoint.info("large").chunks) > 3
        assert len({file for _, file in checkpoint.info("large").chunks}) == 2


def test_a_part_is_exported_under_other_names_in_another_dtype(ours, tmp_path):
    report = export(ours[0], tmp_path / "a", prefix="model.", dtype="bf16")
    assert report.cast == ("layers.0.w",)
    loaded = _load_state_dict_from_keys(checkpoint_id=tmp_path / "a")
    assert_equal(loaded["layers.0.w"], distinct((4, 6)).to(torch.bfloat16))

    def rename(key):
        return key.replace("model.", "net.") if key.startswith("model.") else None

    report = export(ours[0], tmp_path / "b", rename=rename)
    assert sorted(_load_state_dict_from_keys(checkpoint_id=tmp_path / "b")) == [
        "net.b",
        "net.layers.0.w",
    ]
    assert "step" in report.skipped


def test_what_is_there_is_not_overwritten(ours, tmp_path):
    target = tmp_path / "dcp"
    export(ours[0], target, keys=["step"])
    with pytest.raises(ConflictError, match="a folder of DCP already"):
        export(ours[0], target, keys=["text"])
    assert list(sk.load(target)) == ["step"]
    export(ours[0], target, keys=["text"], force=True)
    assert list(sk.load(target)) == ["text"]
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "x").write_text("mine")
    with pytest.raises(ConflictError, match="holds other things"):
        export(ours[0], tmp_path / "notes", force=True)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConflictError, match="no folder"):
        export(ours[0], tmp_path / "file", force=True)
    assert sorted(os.listdir(tmp_path)) == ["dcp", "file", "notes"]


def test_an_export_that_fails_leaves_nothing(ours, tmp_path, monkeypatch):
    def fail(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(dcp_writing.os, "fsync", fail)
    with pytest.raises(StorageError, match="no space left; make room"):
        export(ours[0], tmp_path / "dcp")
    assert os.listdir(tmp_path) == []


def test_too_little_space_is_known_before_it_starts(ours, tmp_path, monkeypatch):
    real = os.statvfs(tmp_path)

    class Full:
        f_bavail, f_frsize = 10, real.f_frsize

    monkeypatch.setattr("os.statvfs", lambda path: Full)
    with pytest.raises(StorageError, match="are free; make room"):
        export(ours[0], tmp_path / "dcp")
    assert os.listdir(tmp_path) == []


def test_what_dcp_cannot_hold_is_named(tmp_path):
    sk.save({"a": {"b": 1}, "a.b": 2}, tmp_path / "two")
    with pytest.raises(ConflictError, match=r"both 'a\.b' in DCP"):
        export(tmp_path / "two", tmp_path / "dcp")
    sk.save([torch.ones(1)], tmp_path / "list")
    with pytest.raises(UnsupportedError, match="no dict"):
        export(tmp_path / "list", tmp_path / "dcp")
    sk.save({"s": torch.eye(3).to_sparse()}, tmp_path / "sparse")
    with pytest.raises(UnsupportedError, match="'s' is sparse"):
        export(tmp_path / "sparse", tmp_path / "dcp")
    with pytest.raises(NotFoundError, match="keys="):
        export(tmp_path / "two", tmp_path / "dcp", keys=["nothing"])
    assert not (tmp_path / "dcp").exists()

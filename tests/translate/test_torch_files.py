"""Files of torch.save are imported without running them, and written piece by piece."""

import os
import pickle
import subprocess
import sys
import zipfile
from collections import OrderedDict
from functools import partial
from pathlib import Path

import pytest
import torch

import shardkeep as sk
from shardkeep.errors import ConflictError, CorruptError, NotFoundError, ShardkeepError
from shardkeep.state.dtypes import TORCH_DTYPES
from shardkeep.translate.torch_files import export_torch
from tests.distributed.tensors import distinct
from tests.translate.exporting import export_by
from tests.translate.states import assert_equal

export = partial(export_by, export_torch)


def all_kinds():
    shared = distinct((4, 6))
    return {
        "model": OrderedDict([("w", shared), ("b", torch.tensor(3, dtype=torch.bfloat16))]),
        "tied": shared,
        "none": torch.empty(0, 4),
        "large": distinct((700, 300)),
        "dtypes": {name: distinct((3, 2), dtype) for name, dtype in TORCH_DTYPES.items()},
        "optim": {"state": {0: {"step": torch.tensor(2.0)}}, "groups": [{"betas": (0.9, 0.99)}]},
        "step": 2**70,
        "plain": [None, True, 1.5, "é", {"x": ()}],
        "size": torch.Size((2, 3)),
    }


def test_what_torch_saved_is_imported_bit_for_bit(tmp_path):
    state = all_kinds()
    state["columns first"] = distinct((4, 6)).t()
    state["within"] = distinct((20,))[3:9]
    torch.save(state, tmp_path / "state.pt")
    sk.import_checkpoint(tmp_path / "state.pt", tmp_path / "ours")
    loaded = sk.load(tmp_path / "ours")
    assert_equal(loaded, state)
    assert loaded["tied"] is loaded["model"]["w"]
    with sk.open(tmp_path / "ours") as checkpoint:
        assert checkpoint.verify().problems == ()


def test_a_file_of_before_torch_1_6_is_imported(tmp_path):
    state = {"w": distinct((3, 4)), "step": 1}
    torch.save(state, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    assert not zipfile.is_zipfile(tmp_path / "old.pth")
    sk.import_checkpoint(tmp_path / "old.pth", tmp_path / "ours")
    assert_equal(sk.load(tmp_path / "ours"), state)


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (Path(self.path),))


@pytest.mark.parametrize("is_zip", [True, False])
def test_a_hostile_file_that_runs_code_under_torch_is_refused_here(tmp_path, is_zip):
    file, marker = tmp_path / "evil.pt", tmp_path / "marker"
    torch.save(
        {"w": torch.ones(2), "odd": Evil(str(marker))},
        file,
        _use_new_zipfile_serialization=is_zip,
    )
    with pytest.raises(ShardkeepError, match=r"is pickled with .*nothing was run"):
        sk.import_checkpoint(file, tmp_path / "ours")
    assert not marker.exists()
    assert not (tmp_path / "ours").exists()
    code = f"import torch; torch.load({str(file)!r}, weights_only=False)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    assert marker.exists(), "torch runs what the file says"


@pytest.mark.parametrize("keep", [0, 10, 300, -1])
def test_a_file_that_was_cut_off_is_an_error_of_ours(tmp_path, keep):
    torch.save({"w": distinct((100,))}, tmp_path / "x.pt")
    data = (tmp_path / "x.pt").read_bytes()
    (tmp_path / "x.pt").write_bytes(data[:keep])
    with pytest.raises(ShardkeepError, match=r"x\.pt"):
        sk.import_checkpoint(tmp_path / "x.pt", tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


def test_a_flipped_bit_is_found_before_an_import(tmp_path):
    torch.save({"w": distinct((100,))}, tmp_path / "x.pt")
    data = bytearray((tmp_path / "x.pt").read_bytes())
    data[data.index(distinct((100,)).numpy().tobytes()) + 50] ^= 1
    (tmp_path / "x.pt").write_bytes(data)
    with pytest.raises(CorruptError, match=r"is damaged, nothing was imported.*CRC-32"):
        sk.import_checkpoint(tmp_path / "x.pt", tmp_path / "ours")


def test_a_pickle_that_is_no_file_of_torch_is_refused(tmp_path):
    (tmp_path / "x.pt").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(ShardkeepError, match=r"x\.pt"):
        sk.import_checkpoint(tmp_path / "x.pt", tmp_path / "ours")


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    path = tmp_path_factory.mktemp("ours")
    sk.save({**all_kinds(), "seed": sk.per_rank(1)}, path)
    return path


@pytest.mark.parametrize("options", [{}, {"mmap": True}, {"weights_only": False}], ids=repr)
def test_torch_loads_an_export(ours, tmp_path, options):
    report = export(ours, tmp_path / "state.pt")
    assert report.skipped == ("seed",)
    assert report.tied == {"tied": "model.w"}
    loaded = torch.load(tmp_path / "state.pt", **{"weights_only": True, **options})
    assert_equal(loaded, all_kinds())
    assert loaded["tied"].data_ptr() == loaded["model"]["w"].data_ptr()
    assert loaded["large"].data_ptr() % 64 == 0


def test_an_export_is_a_sound_archive_and_comes_back(ours, tmp_path):
    export(ours, tmp_path / "state.pt")
    with zipfile.ZipFile(tmp_path / "state.pt") as archive:
        assert archive.testzip() is None
    sk.import_checkpoint(tmp_path / "state.pt", tmp_path / "again")
    assert_equal(sk.load(tmp_path / "again"), all_kinds())


def test_a_model_loads_a_part_in_another_dtype(ours, tmp_path):
    report = export(ours, tmp_path / "model.pt", prefix="model.", dtype="fp16")
    assert set(report.cast) == {"w", "b"}
    loaded = torch.load(tmp_path / "model.pt", weights_only=True)
    expected = {"w": distinct((4, 6)).half(), "b": torch.tensor(3, dtype=torch.float16)}
    assert_equal(dict(loaded), expected)


def test_a_file_that_is_there_is_not_overwritten(ours, tmp_path):
    target = tmp_path / "x.pt"
    target.write_text("mine")
    with pytest.raises(ConflictError, match="force it"):
        export(ours, target)
    assert target.read_text() == "mine"
    export(ours, target, force=True, keys=["step"])
    assert torch.load(target, weights_only=True) == {"step": 2**70}
    with pytest.raises(NotFoundError, match="keys="):
        export(ours, tmp_path / "y.pt", keys=["nothing"])
    assert os.listdir(tmp_path) == ["x.pt"]

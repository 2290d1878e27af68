"""The command line on checkpoints of others, and from and to their formats."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.state_dict_saver import save as save_dcp

import shardkeep as sk
from tests.test_cli import run


def weights() -> dict[str, torch.Tensor]:
    return {
        "wide": torch.arange(4096.0).reshape(64, 64),
        "narrow": torch.arange(48.0).bfloat16().reshape(6, 8),
        "step": torch.tensor(7),
        "none": torch.empty(0, 3),
    }


@pytest.fixture(scope="module")
def formats(tmp_path_factory) -> dict[str, Path]:
    """The same weights in every format that is read in place, made by its own library."""
    root = tmp_path_factory.mktemp("formats")
    sk.save(weights(), root / "ours", durable=False)
    save_file(weights(), root / "one.safetensors")
    (root / "hf").mkdir()
    save_file(weights(), root / "hf" / "model.safetensors", metadata={"format": "pt"})
    save_dcp(weights(), checkpoint_id=root / "dcp", no_dist=True)
    names = ("ours", "one.safetensors", "hf", "dcp")
    return {name: root / name for name in names}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ours", "shardkeep"),
        ("one.safetensors", "safetensors"),
        ("hf", "Hugging Face (safetensors)"),
        ("dcp", "torch.distributed.checkpoint (DCP)"),
    ],
)
def test_show_names_the_format_and_the_tensors_of_any(capsys, formats, name, said):
    code, out, err = run(capsys, "show", formats[name])
    assert (code, err) == (0, "")
    lines = [line.split(maxsplit=1) for line in out.splitlines() if line]
    assert ["format", said] in lines
    assert "wide    F32    64 x 64  16.0 KiB" in out


@pytest.mark.parametrize("name", ["one.safetensors", "hf", "dcp"])
def test_diff_finds_the_same_weights_in_any_format(capsys, formats, name):
    code, out, _ = run(capsys, "diff", formats["ours"], formats[name])
    assert (code, out) == (0, "0 tensors differ, 4 are equal\n")


@pytest.mark.parametrize(
    ("name", "checked"),
    [
        ("ours", "every block by its digest"),
        ("hf", "the format has no digests"),
        ("dcp", "CRC-32"),
    ],
)
def test_verify_says_what_was_checked(capsys, formats, name, checked):
    code, out, _ = run(capsys, "verify", formats[name])
    assert code == 0
    assert ": good, " in out
    assert checked in out


def test_files_of_others_are_numbered_in_the_picture(capsys, formats):
    _, out, _ = run(capsys, "show", formats["hf"], "narrow", "--stats")
    assert out.count("\n00000000\n") + out.count("\n00000000") >= 6
    assert "  0  model.safetensors  [0:6, 0:8]" in out


def test_stats_are_the_same_in_any_format(capsys, formats):
    found = []
    for path in formats.values():
        _, out, _ = run(capsys, "show", path, "wide", "--stats", "--json")
        found.append(json.loads(out)["tensors"][0]["stats"])
    expected = weights()["wide"].double()
    assert found == [found[0]] * len(formats)
    assert found[0]["mean"] == expected.mean().item()


def test_a_cut_off_file_is_damage(capsys, tmp_path):
    path = tmp_path / "a.safetensors"
    save_file(weights(), path)
    path.write_bytes(path.read_bytes()[:-10])
    code, out, err = run(capsys, "verify", path)
    assert (code, err) == (1, "")
    assert "1 problem" in out


def test_an_export_is_what_the_other_library_reads(capsys, tmp_path, formats):
    dest = tmp_path / "out"
    words = ("--dtype", "bf16", "--keys", "wide", "--keys", "narrow", "--rename", "wide=broad")
    code, out, _ = run(capsys, "export", formats["ours"], dest, "--to", "hf", *words)
    assert code == 0
    assert out.startswith("2 tensors, ")
    found = load_file(dest / "model.safetensors")
    assert torch.equal(found["broad"], weights()["wide"].bfloat16())
    assert sorted(found) == ["broad", "narrow"]


@pytest.mark.parametrize(("to", "name"), [("dcp", "folder"), ("torch", "file.pt")])
def test_an_export_comes_back_by_an_import(capsys, tmp_path, formats, to, name):
    assert run(capsys, "export", formats["ours"], tmp_path / name, "--to", to)[0] == 0
    code, out, _ = run(capsys, "import", tmp_path / name, tmp_path / "back", "--under", "model")
    assert code == 0
    assert "imported to" in out
    back = sk.load(tmp_path / "back")["model"]
    assert all(torch.equal(back[key], value) for key, value in weights().items())


def test_an_export_as_json_says_what_was_written(capsys, tmp_path, formats):
    words = ("--to", "safetensors", "--no-verify", "--json")
    _, out, _ = run(capsys, "export", formats["hf"], tmp_path / "b.safetensors", *words)
    assert json.loads(out)["tensors"] == 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["export", "{ours}", "{tmp}/a"], "--to"),
        (["export", "{ours}", "{tmp}/a", "--to", "hff"], 'Did you mean "hf"'),
        (["export", "{ours}", "{tmp}/a", "--to", "hf", "--max-memory", "much"], "a size is as in"),
        (["export", "{ours}", "{tmp}/a", "--to", "hf", "--rename", "wide"], "--rename is OLD=NEW"),
        (["export", "{ours}", "{tmp}/a", "--to", "hf", "--keys", "nothing*"], "no tensor"),
        (["export", "{ours}", "{tmp}/there", "--to", "hf"], "already"),
        (["import", "{tmp}/nothing", "{tmp}/a"], "is not there"),
        (["import", "{ours}", "{tmp}/a"], "shardkeep copy"),
        (["import", "{hf}", "{ours}"], "overwrite"),
        (["copy", "{hf}", "{tmp}/a"], "shardkeep import"),
        (["show", "{tmp}/text.txt"], "is no checkpoint"),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(capsys, tmp_path, formats, words, said):
    (tmp_path / "text.txt").write_text("hello")
    (tmp_path / "there").mkdir()
    save_file(weights(), tmp_path / "there" / "model.safetensors")
    named = {"ours": formats["ours"], "hf": formats["hf"], "tmp": tmp_path}
    code, out, err = run(capsys, *(word.format(**named) for word in words))
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert said in err
    assert not (tmp_path / "a").exists()

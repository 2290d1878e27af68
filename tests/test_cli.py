"""The command line, as somebody types it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import shardkeep as sk
from shardkeep.cli import main


def run(capsys, *words: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit, match=r"\d+") as left:
        main([str(word) for word in words])
    captured = capsys.readouterr()
    assert isinstance(left.value.code, int)
    return left.value.code, captured.out, captured.err


@pytest.fixture(scope="module")
def training(tmp_path_factory) -> Path:
    """A run of three checkpoints and a half-written one."""
    root = tmp_path_factory.mktemp("runs") / "a"
    model = torch.nn.Linear(8, 4)
    with sk.Checkpointer(root, durable=False) as kept:
        for step in (100, 200, 300):
            with torch.no_grad():
                model.weight.add_(1)
            kept.save(step, {"model": model, "step": step}, metrics={"loss": 1 / step})
    (root / "step-00000400").mkdir()
    return root


def test_ls_lists_every_step_with_its_state_and_metrics(capsys, training):
    code, out, _ = run(capsys, "ls", training)
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines()[1:]] == [
        ["100", "committed"],
        ["200", "committed"],
        ["300", "committed"],
        ["400", "half-written"],
    ]
    assert "0.0033333" in out


def test_ls_as_json(capsys, training):
    _, out, _ = run(capsys, "ls", training, "--json")
    found = json.loads(out)
    assert [one["step"] for one in found] == [100, 200, 300, 400]
    assert found[0]["metrics"] == {"loss": 0.01}


def test_show_names_every_tensor(capsys, training):
    code, out, _ = run(capsys, "show", training / "step-00000300")
    assert code == 0
    assert "model.weight  F32    4 x 8  128 B" in out


def test_show_draws_who_holds_what_of_one_tensor(capsys, training):
    _, out, _ = run(capsys, "show", training / "step-00000300", "model.weight", "--stats")
    assert out.count("00000000\n") == 4
    assert "[0:4, 0:8]" in out


def test_show_as_json_has_the_stats(capsys, training):
    path = training / "step-00000300"
    _, out, _ = run(capsys, "show", path, "model.bias", "--stats", "--json")
    (tensor,) = json.loads(out)["tensors"]
    bias = sk.load(path)["model"]["bias"].double()
    assert tensor["stats"]["max"] == bias.max().item()


def test_a_large_checkpoint_is_shown_by_module(capsys, tmp_path):
    state = {f"layers.{n}.{name}": torch.zeros(2) for n in range(120) for name in "ab"}
    sk.save(state, tmp_path, durable=False)
    _, out, _ = run(capsys, "show", tmp_path)
    assert "layers.119  " in out
    assert "layers.119.a" not in out


def test_verify_of_a_run_takes_every_checkpoint(capsys, training):
    code, out, _ = run(capsys, "verify", training)
    assert code == 0
    assert out.count(": good") == 3


def test_verify_finds_a_flipped_bit_and_names_the_tensor(capsys, tmp_path):
    sk.save({"w": torch.arange(4096.0)}, tmp_path, durable=False)
    (file,) = tmp_path.glob("*.safetensors")
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)
    code, out, _ = run(capsys, "verify", tmp_path)
    assert code == 1
    assert "'w'" in out


def test_diff_of_two_steps_is_sorted_by_change(capsys, training):
    a, b = training / "step-00000100", training / "step-00000300"
    code, out, _ = run(capsys, "diff", a, b)
    assert code == 1
    assert "model.weight" in out
    assert "1 tensor differs, 1 is equal" in out
    assert run(capsys, "diff", a, a)[0] == 0


def test_diff_says_what_only_one_has(capsys, tmp_path):
    sk.save({"a": torch.zeros(2), "w": torch.zeros(2)}, tmp_path / "1", durable=False)
    sk.save({"b": torch.zeros(2), "w": torch.zeros(3)}, tmp_path / "2", durable=False)
    _, out, _ = run(capsys, "diff", tmp_path / "1", tmp_path / "2")
    assert f"only in {tmp_path / '1'}: a" in out
    assert f"only in {tmp_path / '2'}: b" in out
    assert "w: shape [2], [3]" in out


def test_prune_says_what_would_go_and_does_it_when_told(capsys, tmp_path):
    with sk.Checkpointer(tmp_path, durable=False) as kept:
        for step in (1, 2, 3):
            kept.save(step, {"w": torch.zeros(2)})
    _, out, _ = run(capsys, "prune", tmp_path, "--keep-last", 1)
    assert "2 checkpoints would be removed: steps 1, 2" in out
    assert kept.steps() == [1, 2, 3]
    run(capsys, "prune", tmp_path, "--keep-last", 1, "--yes")
    assert kept.steps() == [3]


def test_prune_without_a_rule_removes_nothing(capsys, training):
    code, _, err = run(capsys, "prune", training, "--yes")
    assert code == 2
    assert "say what to keep" in err


def test_a_copy_is_a_checkpoint(capsys, training, tmp_path):
    source = training / "step-00000300"
    code, out, _ = run(capsys, "copy", source, tmp_path / "copy")
    assert code == 0
    assert "copied and checked" in out
    assert run(capsys, "diff", source, tmp_path / "copy")[0] == 0
    code, _, err = run(capsys, "copy", source, tmp_path / "copy")
    assert code == 2
    assert "holds a checkpoint already" in err


def test_a_damaged_checkpoint_is_not_copied(capsys, tmp_path):
    sk.save({"w": torch.arange(4096.0)}, tmp_path / "a", durable=False)
    (file,) = (tmp_path / "a").glob("*.safetensors")
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)
    code, _, err = run(capsys, "copy", tmp_path / "a", tmp_path / "b")
    assert code == 2
    assert "not what was written" in err
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["show", "{run}"], "name one of them, such as"),
        (["ls", "{run}/step-00000100"], "is one checkpoint, not a run"),
        (["show", "{run}/nothing"], "is not there"),
        (["show", "{run}/step-00000400"], "holds no checkpoint"),
        (["show", "{run}/step-00000100", "wieght"], "no tensor is called 'wieght'"),
        (["ls", "{run}/nothing"], "is not there"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_to_do(capsys, training, words, said):
    code, out, err = run(capsys, *(word.format(run=training) for word in words))
    assert (code, out) == (2, "")
    assert said in err
    assert "Traceback" not in err


def imported_by(*words: object) -> set[str]:
    """The modules that a command has loaded when it ends."""
    code = (
        "import sys\nfrom shardkeep.cli import main\n"
        f"try:\n    main({[str(word) for word in words]!r})\n"
        "except SystemExit:\n    pass\n"
        "print('\\n' + ' '.join({name.split('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(done.stdout.splitlines()[-1].split())


def test_help_and_ls_import_neither_the_parser_nor_numpy(training):
    heavy = {"torch", "numpy", "cyclopts"}
    assert imported_by("--help") & {*heavy, "rich", "msgspec"} == set()
    assert imported_by("ls", training) & heavy == set()


def test_commands_that_look_never_import_torch(training):
    step = training / "step-00000100"
    for words in (
        ["show", step, "--stats"],
        ["verify", training],
        ["diff", step, training / "step-00000200"],
        ["explain", step, "--mesh", "dp=2"],
        ["prune", training, "--keep-last", "9"],
    ):
        found = imported_by(*words)
        assert "torch" not in found
        assert "shardkeep" in found

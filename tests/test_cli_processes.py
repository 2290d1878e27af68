"""The command line as a process: its terminal, its signals, its shell, its ranks."""

import fcntl
import json
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from functools import partial
from pathlib import Path

import pytest
import torch

import shardkeep as sk
from shardkeep.transfer import copy_files
from tests.test_cli import run

SHARDKEEP = [sys.executable, "-m", "shardkeep"]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> tuple[Path, Path]:
    """Two checkpoints with names of the length that real models have; one cell differs."""
    root = tmp_path_factory.mktemp("processes")
    generator = torch.Generator().manual_seed(0)
    state = {
        f"model.layers.{layer}.self_attention.{name}.weight": torch.randn(
            128, 96, generator=generator
        )
        for layer in range(4)
        for name in ("query_projection", "output_projection")
    }
    sk.save(state, root / "a", durable=False)
    state["model.layers.2.self_attention.query_projection.weight"][5, 5] += 1
    sk.save(state, root / "b", durable=False)
    return root / "a", root / "b"


@pytest.fixture(scope="module")
def training(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("run") / "a"
    with sk.Checkpointer(root, durable=False) as kept:
        for step in (100, 200):
            metrics = {f"{name}_loss": -1e-5 / step for name in ("train", "valid", "test", "best")}
            kept.save(step, {"w": torch.zeros(3)}, metrics=metrics)
    return root


def in_window(columns: int, *words: object) -> str:
    """What a window of this width shows."""
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")}
    process = subprocess.Popen(
        [*SHARDKEEP, *map(str, words)],
        stdout=child,
        stderr=child,
        env={**environment, "TERM": "xterm-256color"},
    )
    os.close(child)
    shown = b""
    while True:
        try:
            piece = os.read(parent, 65536)
        except OSError:
            break
        if not piece:
            break
        shown += piece
    os.close(parent)
    process.wait()
    return shown.decode().replace("\r\n", "\n")


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.mark.parametrize("columns", [80, 120])
def test_tables_fit_the_window_and_numbers_stay_whole(checkpoints, training, columns):
    a, b = checkpoints
    stats, diff = in_window(columns, "show", a, "--stats"), in_window(columns, "diff", a, b)
    ls, overview = in_window(columns, "ls", training), in_window(columns, "--help")
    for text in (stats, diff, ls, overview):
        assert "\x1b[" in text
        assert max(map(len, plain(text).splitlines())) <= columns
    found = json.loads(
        subprocess.run(
            [*SHARDKEEP, "show", a, "--stats", "--json"], check=True, capture_output=True
        ).stdout
    )
    for tensor in found["tensors"]:
        for name in ("min", "max", "mean", "std"):
            assert f"{tensor['stats'][name]:.5g}" in plain(stats)
    assert "1 tensor differs, 7 are equal" in plain(diff)
    assert re.search(r"200 +committed .* -5e-08", plain(ls))
    assert ("no room for" in ls) == (columns == 80)


def test_a_pipe_gets_neither_colours_nor_folded_names(checkpoints):
    done = subprocess.run(
        [*SHARDKEEP, "show", checkpoints[0], "--stats"], capture_output=True, text=True, check=True
    )
    assert "\x1b" not in done.stdout
    assert "model.layers.3.self_attention.output_projection.weight  F32  " in done.stdout
    assert not re.search(r" $", done.stdout, re.MULTILINE)


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> tuple[Path, Path]:
    """So large that processes share the work; of the second, all is changed and some not finite."""
    root = tmp_path_factory.mktemp("large")
    generator = torch.Generator().manual_seed(0)
    state = {f"layer{n}": torch.randn(1024, 2048, generator=generator) for n in range(9)}
    sk.save(state, root / "a", durable=False)
    for number, tensor in enumerate(state.values()):
        tensor.add_(1e-3)[number, :3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    sk.save(state, root / "b", durable=False)
    return root / "a", root / "b"


_SAYS_WHO_WORKS = """
import sys
from shardkeep.cli.entry import main
from shardkeep.view import pieces
forked = pieces.run_forked
pieces.run_forked = lambda *a, **k: print("forked", file=sys.stderr) or forked(*a, **k)
main()
"""


def apart(*words: object) -> tuple[int, str, str]:
    """As `run`, in a process that has neither torch nor threads."""
    done = subprocess.run(
        [sys.executable, "-c", _SAYS_WHO_WORKS, *map(str, words)], capture_output=True, text=True
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("command", ["show --stats --json", "diff --json"])
def test_processes_find_what_threads_find(capsys, large, command):
    name, *options = command.split()
    words = [name, *large[: 1 + (name == "diff")], *options]
    code, out, err = apart(*words)
    assert err == "forked\n"
    assert (code, out) == run(capsys, *words)[:2]


def test_damage_that_a_worker_meets_is_told_as_ever(capsys, large, tmp_path):
    copied = shutil.copytree(large[0], tmp_path / "damaged")
    file = max(copied.glob("*.safetensors"), key=lambda one: one.stat().st_size)
    with file.open("r+b") as opened:
        opened.seek(file.stat().st_size // 2)
        opened.write(b"damaged")
    code, out, err = apart("show", copied, "--stats")
    assert err == f"forked\n{run(capsys, 'show', copied, '--stats')[2]}"
    assert "are not what was written" in err
    assert (code, out) == (2, "")


def test_a_reader_that_has_seen_enough_ends_it_quietly(training):
    done = subprocess.run(
        f"{sys.executable} -m shardkeep show {training}/step-00000100 --json | head -1; "
        "echo ${PIPESTATUS[0]}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
    )
    assert done.stdout == "{\n0\n"
    assert done.stderr == ""


def test_ctrl_c_ends_a_measurement_and_leaves_nothing(tmp_path):
    words = [*SHARDKEEP, "bench", tmp_path, "--size", "40MB", "--repeat", "10000"]
    # Whoever runs these tests in the background of a shell has them ignore SIGINT, as would ours.
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, preexec_fn=heed) as process:
        try:
            deadline = time.monotonic() + 60
            while not list(tmp_path.glob(".shardkeep-bench-*/saved/manifest.json")):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
        finally:
            # One that goes on would be waited for, for hours.
            process.kill()
    assert (process.returncode, said) == (130, "")
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_in_a_copy_leaves_nothing(capsys, tmp_path, monkeypatch):
    state = {f"t{number}": torch.arange(300_000.0) for number in range(4)}
    sk.save(state, tmp_path / "a", durable=False, threads=2)
    check = copy_files.require_blocks
    calls = 0

    def interrupted(*arguments: object) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        check(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(copy_files, "require_blocks", interrupted)
    assert run(capsys, "copy", tmp_path / "a", tmp_path / "b") == (130, "", "")
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_learns_the_commands_and_their_options(tmp_path, shell):
    script = tmp_path / "script"
    words = [*SHARDKEEP, "--install-completion", "--shell", shell, "--output", script]
    subprocess.run(words, check=True, capture_output=True)
    text = script.read_text()
    for word in ("verify", "explain", "import", "--stats", "--keep-last", "--max-shard-size"):
        assert word.lstrip("-") in text
    if shell == "bash":
        subprocess.run(["bash", "-n", script], check=True)


def test_completion_goes_where_the_shell_looks_for_it(tmp_path):
    environment = {**os.environ, "HOME": str(tmp_path), "SHELL": "/bin/bash"}
    words = [*SHARDKEEP, "--install-completion", "--shell", "bash"]
    subprocess.run(words, check=True, capture_output=True, env=environment)
    assert "bash-completion" in (tmp_path / ".bashrc").read_text()
    complete = subprocess.run(
        ["bash", "-c", "source ~/.bashrc; complete -p shardkeep"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert "shardkeep" in complete.stdout


def test_a_traceback_comes_only_with_debug(tmp_path):
    words = [*SHARDKEEP, "show", tmp_path / "nothing"]
    brief = subprocess.run(words, capture_output=True, text=True)
    long = subprocess.run([*words, "--debug"], capture_output=True, text=True)
    assert (brief.returncode, brief.stderr.count("\n")) == (2, 1)
    assert long.stderr.startswith("Traceback")


TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def by_two(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TORCHRUN, "-m", "shardkeep", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.distributed
@pytest.mark.xdist_group("distributed")
def test_two_ranks_find_what_one_finds(checkpoints, capsys):
    a, b = checkpoints
    done = by_two("diff", a, b, "--json")
    _, alone, _ = run(capsys, "diff", a, b, "--json")
    assert json.loads(done.stdout) == json.loads(alone)
    assert done.returncode == 1


@pytest.mark.distributed
@pytest.mark.xdist_group("distributed")
def test_two_ranks_import_together(tmp_path, checkpoints, capsys):
    a, _ = checkpoints
    assert run(capsys, "export", a, tmp_path / "hf", "--to", "hf")[0] == 0
    done = by_two("import", tmp_path / "hf", tmp_path / "back")
    assert done.returncode == 0
    assert done.stdout.count("imported to") == 1
    with sk.open(tmp_path / "back") as found:
        assert found.manifest.world == 2
    assert run(capsys, "diff", a, tmp_path / "back")[0] == 0


@pytest.mark.distributed
@pytest.mark.xdist_group("distributed")
def test_two_ranks_export_the_files_of_one(tmp_path, checkpoints, capsys):
    a, _ = checkpoints
    options = ("--to", "hf", "--max-shard-size", "1KB")
    done = by_two("export", a, tmp_path / "two", *options)
    assert done.returncode == 0, done.stderr
    assert run(capsys, "export", a, tmp_path / "one", *options)[0] == 0
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert len(names) > 2
    assert sorted(path.name for path in (tmp_path / "two").iterdir()) == names
    assert all(
        (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
        for name in names
    )
    again = by_two("export", a, tmp_path / "two", *options)
    assert again.returncode != 0
    assert again.stderr.count("shardkeep: ") == 1
    assert "holds the weights of a model already" in again.stderr


@pytest.mark.distributed
@pytest.mark.xdist_group("distributed")
def test_a_mistake_is_told_once(tmp_path):
    done = by_two("verify", tmp_path / "nothing")
    assert done.returncode != 0
    assert done.stderr.count("shardkeep: ") == 1
    assert "nothing is not there" in done.stderr


def test_ranks_of_a_training_job_are_not_taken_for_ours(checkpoints):
    job = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x"}
    words = [str(Path(sys.executable).with_name("shardkeep")), "verify", str(checkpoints[0])]
    done = subprocess.run(
        words, env={**os.environ, **job}, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout.count(": good")) == (0, 1)

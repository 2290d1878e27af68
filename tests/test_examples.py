"""The examples do what they say: the training script is run, and run again."""

import json
import math
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import shardkeep as sk
from examples.demo_picture import Outcome, Phase, Step, largest_difference, page, picture

ROOT = Path(__file__).parents[1]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def train(run: Path, losses: Path, parallel: str) -> list[dict[str, float]]:
    """What each step of this call wrote down."""
    options = ["--parallel", parallel, "--steps", "6", "--save-every", "4", "--losses", losses]
    command = [*TORCHRUN, ROOT / "examples" / "train_gpt.py", run, *options]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in losses.read_text().splitlines()]


@pytest.mark.distributed
@pytest.mark.xdist_group("distributed")
def test_training_goes_on_under_another_parallelism_with_the_same_losses(tmp_path):
    run = tmp_path / "run"
    first = train(run, tmp_path / "first.jsonl", "fsdp")
    second = train(run, tmp_path / "second.jsonl", "tp")

    assert [line["step"] for line in first] == [1, 2, 3, 4, 5, 6]
    assert [line["step"] for line in first if line["blocked"] is not None] == [4]
    assert sk.Checkpointer(run).steps() == [4]
    # Steps 5 and 6 were never saved: the second call makes them again.
    assert [line["step"] for line in second] == [5, 6]
    again = [line["loss"] for line in second]
    assert again == pytest.approx([line["loss"] for line in first[4:]], abs=1e-5)
    assert first[0]["loss"] - first[-1]["loss"] > 0.1


def outcome(name: str, numbers: range, *, kept: tuple[int, ...] = (), off: float = 0.0, **how):
    steps = [Step(n, 4 / n + off, 0.1, 0.05 if n in kept else None) for n in numbers]
    return Outcome(Phase(name, name, 2, "fsdp", **how), tuple(steps), kept)


def test_the_demo_shows_the_kill_the_saves_and_the_difference():
    whole = outcome("alone", range(1, 21))
    killed = outcome("killed", range(1, 14), kept=(5, 10), signal=signal.SIGKILL)
    ended = outcome("ended", range(11, 21), kept=(15, 20), off=1e-6)

    svg = ElementTree.fromstring(picture(whole, [killed, ended]))
    words = [text.text or "" for text in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert {"SIGKILL to a worker", "3 steps are made again"} <= set(words)
    saves = [dot for dot in svg.iter("{http://www.w3.org/2000/svg}circle") if len(dot)]
    assert len(saves) == 4
    assert math.isclose(largest_difference(whole, [killed, ended]), 1e-6, rel_tol=1e-6)
    assert "SIGKILL, step 10 kept" in page(whole, [killed, ended], tolerance=1e-4)


def test_the_demo_does_not_call_a_large_difference_rounding():
    whole, other = outcome("alone", range(1, 5)), outcome("ended", range(1, 5), kept=(4,), off=0.5)
    assert "The losses differ by 5.0e-01, more than 0.0001" in page(whole, [other], tolerance=1e-4)

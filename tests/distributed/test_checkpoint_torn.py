"""An overwrite that is torn apart by SIGKILL leaves the old checkpoint or the new one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed.pool import ROOT


def outcomes_of(path: Path, *, rounds: int, seed: int) -> list[dict]:
    command = [sys.executable, "-m", "tests.distributed.torn_overwrite", str(path)]
    done = subprocess.run(
        [*command, "--rounds", str(rounds), "--seed", str(seed)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=30 * rounds,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def assert_hit(outcomes: list[dict]) -> None:
    """The kills fell where they hurt: into saves of each kind, before and after the commit."""
    assert {(found["size"], found["is_async"]) for found in outcomes} == {
        (2, False), (2, True), (4, False), (4, True)
    }  # fmt: skip
    assert {found["found"] for found in outcomes} == {"old", "new"}
    assert any(found["leftovers"] for found in outcomes), "no kill fell into a save"
    assert any(found["survived"] for found in outcomes)


def test_a_hundred_torn_overwrites_leave_the_old_or_the_new_checkpoint(tmp_path):
    outcomes = outcomes_of(tmp_path / "checkpoint", rounds=100, seed=1)

    assert len(outcomes) == 100
    assert_hit(outcomes)


@pytest.mark.torture
def test_a_thousand_torn_overwrites_leave_the_old_or_the_new_checkpoint(tmp_path):
    outcomes = outcomes_of(tmp_path / "checkpoint", rounds=1000, seed=2)

    assert len(outcomes) == 1000
    assert_hit(outcomes)

"""A run whose processes get SIGKILL ends, when it is resumed, with the bits of one left alone."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from examples.resume_proof import RANKS, SAVE_EVERY, STEPS, WAYS, Kill, compare, path_of, prove
from tests.distributed.pool import ROOT

AFTER, DURING = True, False
KILLS = {
    "ddp": Kill((2,), 2, AFTER),
    "fsdp": Kill((0, 3), 2, DURING),
    "hsdp": Kill((0,), 2, AFTER),
    "tp": Kill((1, 2), 2, AFTER),
    "fsdp-tp": Kill((3,), 2, AFTER),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def proofs(folder: Path) -> dict[str, dict[str, Any]]:
    runs = json.dumps({way: [asdict(kill)] for way, kill in KILLS.items()})
    done = subprocess.run(
        [sys.executable, "-m", "tests.distributed.killed_runs", str(folder), runs],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return {one["way"]: one for one in found}


@pytest.mark.parametrize("way", WAYS)
def test_a_run_that_is_killed_goes_on_bit_for_bit(proofs, way):
    (broken,) = proofs[way]["broken"]
    assert broken["step"] == 2 * SAVE_EVERY
    if KILLS[way].is_complete:
        assert broken["newest"] >= broken["step"]
    assert SAVE_EVERY <= broken["newest"] < STEPS
    assert proofs[way]["compared"]["differing"] == []
    assert proofs[way]["compared"]["tensors"] > 100


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.usefixtures("proofs")
def test_a_difference_would_show(folder, way):
    """From save to save all changes: parameters, optimizer, values, what each rank has."""
    run = folder / way / "killed"
    differing = compare(path_of(run, STEPS - SAVE_EVERY), path_of(run, STEPS)).differing

    expected = {"model.head.weight", "optim.state.head.weight.exp_avg", "sched.last_epoch"}
    # Dropout draws from the random states: a resumed run needs them.
    expected |= {f"rng of rank {rank}" for rank in range(RANKS)}
    expected |= {f"data.taken of rank {rank}" for rank in range(RANKS)}
    assert expected <= set(differing)


@pytest.mark.torture
@pytest.mark.parametrize("way", WAYS)
def test_with_torchrun_a_run_that_is_killed_three_times_goes_on_bit_for_bit(tmp_path, way):
    """Once between saves, twice in the middle of one: any rank, or two of them."""
    dice = random.Random(way)
    after = Kill((dice.randrange(RANKS),), 1, AFTER)

    proof = prove(way, [after, Kill.in_a_save(dice), Kill.in_a_save(dice)], tmp_path)

    assert proof.compared.differing == ()

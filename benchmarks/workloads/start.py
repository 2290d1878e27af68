"""W8: how long until the first save? Imports, and a small state right after them."""

import os
import subprocess
import sys

from benchmarks.asked import Asked
from benchmarks.figures import DCP, OURS, Figure
from benchmarks.places import TMPFS, folder_on
from benchmarks.turns import in_turn

NAME = "W8"
TITLE = "Start-up, in fresh processes"
SETTING = "tmpfs"
IMPORT, FIRST_SAVE = "import, without torch", "first save of a small state"
_NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"

_IMPORT = """
import sys, time
start = time.perf_counter()
import {module}
print(time.perf_counter() - start)
assert "torch" not in sys.modules
"""
_FIRST = """
import sys, time, torch
{imports}
state = {{f"layer{{n}}": torch.ones(64, 64) for n in range(10)}}
start = time.perf_counter()
{save}
print(time.perf_counter() - start)
"""
_ACTS: dict[tuple[str, str], str] = {
    (IMPORT, OURS): _IMPORT.format(module="shardkeep"),
    (IMPORT, "safetensors"): _IMPORT.format(module="safetensors"),
    (FIRST_SAVE, OURS): _FIRST.format(
        imports="from shardkeep import save", save="save(state, sys.argv[1])"
    ),
    (FIRST_SAVE, DCP): _FIRST.format(
        imports="import torch.distributed.checkpoint as dcp",
        save="dcp.save(state, checkpoint_id=sys.argv[1], no_dist=True)",
    ),
    (FIRST_SAVE, "safetensors"): _FIRST.format(
        imports="from safetensors.torch import save_file", save="save_file(state, sys.argv[1])"
    ),
}


def run(asked: Asked) -> list[Figure]:
    """Each in as many processes as there are turns, after one that writes the bytecode.

    A quick run does without that one.
    """
    acts = {what: text for what, text in _ACTS.items() if asked.wants(what[1])}
    found: dict[tuple[str, str], list[float]] = {what: [] for what in acts}
    for turn in range(0 if asked.quick else -1, asked.turns(5, 1)):
        for what in in_turn(list(acts), turn):
            seconds = _seconds(acts[what])
            if turn >= 0:
                found[what].append(seconds)
    return [Figure(NAME, SETTING, *what, tuple(values)) for what, values in found.items()]


def _seconds(script: str) -> float:
    """What the script prints. An installed package has its bytecode, whatever is set here."""
    clean = {name: value for name, value in os.environ.items() if name != _NO_BYTECODE}
    with folder_on(TMPFS) as folder:
        words = [sys.executable, "-c", script, str(folder / "checkpoint")]
        done = subprocess.run(words, env=clean, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"a fresh process failed:\n{done.stderr}")
    return float(done.stdout)

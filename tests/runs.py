"""What do tests of runs save, how do they damage it, and what must come back?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import shardkeep as sk


def state_of(step: int) -> dict[str, Any]:
    return {"w": torch.arange(2000) + step, "step": step}


def empty() -> dict[str, Any]:
    return {"w": torch.zeros(2000, dtype=torch.int64), "step": -1}


def save_all(run: sk.Checkpointer, *steps: int) -> None:
    for step in steps:
        run.save(step, state_of(step))


def assert_restores(run: sk.Checkpointer, step: int, *arguments: Any, **options: Any) -> None:
    state = empty()
    assert run.restore(state, *arguments, **options) == step
    assert state["step"] == step
    assert torch.equal(state["w"], torch.arange(2000) + step)


def data_file(folder: Path) -> Path:
    (found,) = folder.glob("*.safetensors")
    return found


def flip_a_bit(folder: Path) -> None:
    data = bytearray(data_file(folder).read_bytes())
    data[-100] ^= 4
    data_file(folder).write_bytes(data)


def cut_the_manifest(folder: Path) -> None:
    manifest = folder / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:-20])


def remove_a_file(folder: Path) -> None:
    data_file(folder).unlink()


def break_off(folder: Path) -> None:
    (folder / "manifest.json").unlink()

"""What do the ranks of a campaign save, and which version is in a folder afterwards?

Every version of the state differs from every other in each of its parts, so that a mixture shows.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import shardkeep as sk
from shardkeep.errors import NotFoundError
from shardkeep.transfer.council import StoreCouncil

ITEMS = 32 * 1024


def state_of(version: int, rank: int, items: int = ITEMS) -> dict[str, Any]:
    """What a rank saves: a part of its own, a part that all have, values."""
    return {
        "own": {f"rank{rank}": torch.full((items,), version, dtype=torch.int64)},
        "common": torch.full((items,), version, dtype=torch.int64),
        "small": [torch.tensor(version), version],
        "mine": sk.per_rank((version, rank)),
    }


def save_version(
    version: int,
    path: Path,
    council: StoreCouncil | None,
    *,
    size: int,
    durable: bool = False,
    is_async: bool = False,
    items: int = ITEMS,
) -> None:
    """Save a version over whatever is there; without a council, by this process alone."""
    rank = council.me if council is not None else 0
    state = state_of(version, rank, items)
    act: Callable[..., Any] = sk.save_async if is_async else sk.save
    done = act(
        state,
        path,
        overwrite=True,
        durable=durable,
        metadata={"version": version, "size": size, "items": items},
        group=council,
    )
    if is_async:
        state["common"].fill_(-1)
        done.result()


def version_of(path: Path) -> int:
    """The one version that the checkpoint consists of, every byte of it checked; 0 if none."""
    try:
        checkpoint = sk.open(path)
    except NotFoundError:
        return 0
    with checkpoint:
        report = checkpoint.verify()
        assert report, report.problems
        said = checkpoint.metadata
        version, size, items = said["version"], said["size"], said["items"]
        for rank in range(size):
            assert checkpoint.per_rank("mine", rank) == (version, rank)
    state = sk.load(path, keys=["own*", "common", "small*"])
    assert sorted(state["own"]) == [f"rank{rank}" for rank in range(size)]
    for tensor in (*state["own"].values(), state["common"]):
        assert tensor.shape == (items,)
        assert bool((tensor == version).all()), f"version {version} holds {tensor.unique()}"
    assert state["small"][0].item() == state["small"][1] == version
    return version


def prune_all(path: Path) -> int:
    """How many leftovers prune removed; AssertionError if it leaves one."""
    removed = len(sk.prune(path).names)
    listed = {"manifest.json"}
    try:
        with sk.open(path) as checkpoint:
            manifest = checkpoint.manifest
            listed |= {manifest.file_name(index) for index in range(len(manifest.files))}
            listed.add(f"{manifest.save_id}-report.json")
    except NotFoundError:
        pass
    left = sorted(set(os.listdir(path)) - listed)
    assert not left, f"prune leaves {left}"
    return removed

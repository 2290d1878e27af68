"""A rank of a job on several hosts, started by torchrun: saves, restores, says what it saw.

The arguments are what to do, a folder that all see, and this host's own disk.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import shardkeep as sk

ROWS = 3001


def state_of(version: int) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = (torch.arange(ROWS * 70) + 1_000_000 * version).reshape(ROWS, 70)
    shards = distribute_tensor(whole, mesh, [Shard(0)], src_data_rank=None)
    return {"shards": shards, "common": whole[:100].clone(), "version": version}


def is_version(state: dict[str, Any], version: int) -> bool:
    truth = state_of(version)
    return (
        torch.equal(state["shards"].to_local(), truth["shards"].to_local())
        and torch.equal(state["common"], truth["common"])
        and state["version"] == version
    )


def run_on(shared: Path, disk: Path, slow: str) -> sk.Checkpointer:
    return sk.Checkpointer(shared / slow, local=disk, peer_copies=True, timeout=30.0)


def save(shared: Path, disk: Path) -> dict[str, Any]:
    """Save to a disk of this host's own, which fails; then to the local tier."""
    try:
        sk.save(state_of(1), disk / "alone", timeout=30.0)
        said = ""
    except sk.ShardkeepError as error:
        said = str(error)
    with run_on(shared, disk, "slow") as run:
        run.save(1, state_of(1))
        handle = run.save_async(2, state_of(2))
        handle.result()
        run.wait()
        steps = run.steps()
    return {"node-local": said, "steps": steps, "local": sorted(p.name for p in disk.iterdir())}


def restore(shared: Path, disk: Path) -> dict[str, Any]:
    """Restore with a slow tier that has nothing: from what hosts and their peers have."""
    with run_on(shared, disk, "empty") as run:
        state = state_of(0)
        step = run.restore(state)
        assert run.restored is not None
        report = run.restored
        run.wait()
        uploaded = run.steps()
    return {
        "step": step,
        "whole": is_version(state, 2),
        "read": report.nbytes_read,
        "received": report.nbytes_received,
        "uploaded": uploaded,
    }


def main() -> None:
    act, shared, disk = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    said = {"save": save, "restore": restore}[act](shared, disk)
    (shared / f"{act}-{dist.get_rank()}.json").write_text(json.dumps(said))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

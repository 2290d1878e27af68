"""How was the frozen checkpoint of format version 1 made? On three ranks, by torchrun.

It was run once, as `torchrun --nproc-per-node 3 conformance/formats/make_v1.py DEST`. A version
that writes another format gets a state, a script and a folder of its own; what was frozen is never
made again.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from unittest.mock import patch

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import shardkeep as sk
from shardkeep.transfer import planning

sys.path.insert(0, os.fspath(Path(__file__).parents[2]))
from conformance.formats.v1_state import (
    BOXES,
    WORLD,
    Day,
    by_boxes,
    by_rows,
    own_value,
    plain_state,
)


def main(dest: str) -> None:
    """Save the state on three ranks, two files each."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    sk.register_value_type("conformance.date", Day, Day.isoformat, Day.fromisoformat)
    state = {
        **plain_state(),
        "by rows": distribute_tensor(by_rows(), init_device_mesh("cpu", (WORLD,)), [Shard(0)]),
        "by boxes": _boxes(rank),
        "own": sk.per_rank(own_value(rank)),
    }
    with patch.object(planning, "_MIN_NBYTES_FOR_FILES", 0):
        sk.save(state, dest, threads=2, metadata={"made by": "shardkeep", "numbers": [1, 0.5]})
    dist.destroy_process_group()


def _boxes(rank: int) -> sk.ShardedTensor:
    whole = by_boxes()
    shards = [
        sk.Shard.from_tensor_and_offsets(whole[a : a + n, b : b + m].clone(), [a, b], rank)
        for (a, b), (n, m), owner in BOXES
        if owner == rank
    ]
    return sk.init_from_local_shards(shards, *whole.shape)


if __name__ == "__main__":
    main(sys.argv[1])

"""How does a full state dict that every rank has become this rank's shards? Nothing travels."""

from typing import Any

import torch

from shardkeep.errors import InvalidError
from shardkeep.ranks import RankGroup
from shardkeep.sharded.leaves import is_on_meta, leaf_kind
from shardkeep.state.paths import Path, path_text
from shardkeep.state.placing import place
from shardkeep.state.targets import Target, target_for
from shardkeep.state.tree import leaves


def distribute_state_dict(
    full_state_dict: Any,
    local_state_dict: Any,
    device: torch.device | str | None = None,
    pg: Any = None,
) -> None:
    """Fill `local_state_dict` in place from this rank's own full one.

    DTensors, ShardedTensors and tensors are filled where they are, in their dtype; those on the
    meta device are made on `device` (CPU by default). Keys that only one of the two has are left.
    """
    me = RankGroup.of(pg).me
    where = torch.device(device) if device is not None else None
    here = dict(leaves(local_state_dict))
    found = [(path, full) for path, full in leaves(full_state_dict) if path in here]
    # All targets first: a shape that does not fit is known before anything changes.
    targets = [
        (_target(path, here[path], full, where), full)
        for path, full in found
        if leaf_kind(full) is not None
    ]
    with torch.no_grad():
        for target, full in targets:
            _fill(target, full.detach(), me)
    news = {target.path: target.leaf for target, _ in targets}
    news |= {path: value for path, value in found if leaf_kind(value) is None}
    place(local_state_dict, news)


def _target(path: Path, local: Any, full: Any, device: torch.device | None) -> Target:
    if leaf_kind(full) != "tensor" or is_on_meta(full):
        raise InvalidError(
            f"{path_text(path)} of the full state dict is not a plain tensor with values; "
            "make it whole first with gather_state_dict"
        )
    return target_for(path, local, full.shape, full.dtype, device)


def _fill(target: Target, full: torch.Tensor, me: int) -> None:
    for part in target.layout(me).parts_of(me):
        target.buffers[part.buffer][part.place.slices()].copy_(full[part.box.slices()])

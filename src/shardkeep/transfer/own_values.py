"""Which values did each rank save as its own?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardkeep.errors import InvalidError, NotFoundError
from shardkeep.manifest import Node
from shardkeep.transfer.opened import Opened

_THREADS = 8


def own_value(opened: Opened, key: str, rank: int) -> Any:
    """What `rank` saved under `key` as its own."""
    from shardkeep.state.building import build_state

    values = _nodes_of(opened, rank)
    if key not in values:
        raise NotFoundError(
            f"{key!r} has a value of each rank's own, and rank {rank} saved none (the "
            f"checkpoint is of {opened.manifest.world} ranks); load it with strict=False, or "
            "read another rank's with open(path).per_rank(key, rank)"
        )
    return build_state(values[key], no_tensor, str)


def all_own_values(opened: Opened, key: str) -> list[Any]:
    """What each rank saved under `key` as its own, by rank."""
    from shardkeep.state.building import build_state

    files = opened.manifest.files
    first = [at for at, file in enumerate(files) if file.number == 0]
    opened.places.fetch(first, threads=_THREADS)
    found = {files[at].rank: opened.places.own_values(at) for at in first}
    return [
        build_state(found[rank][key], no_tensor, str)
        for rank in sorted(found)
        if key in found[rank]
    ]


def _nodes_of(opened: Opened, rank: int) -> Mapping[str, Node]:
    index = opened.manifest.files.find(rank=rank, number=0)
    return opened.places.own_values(index) if index is not None else {}


def no_tensor(number: int) -> Any:
    """Where a value of a rank's own is built: a tensor has no place in it."""
    raise InvalidError("values of a rank's own hold no tensors")

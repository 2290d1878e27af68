"""Which rank uploads which file? One whose host has it, and all have about as much to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardkeep.errors import NotFoundError


def plan_uploads(
    nbytes: Sequence[int],
    hosts_with: Sequence[Sequence[int]],
    ranks_on: Mapping[int, Sequence[int]],
) -> dict[int, list[int]]:
    """The files, by index, that each rank uploads; NotFoundError if no host has one.

    >>> plan_uploads([9, 4, 5], [[0], [0, 1], [1]], {0: [0, 1], 1: [2]})
    {0: [0], 1: [1], 2: [2]}
    """
    loads = {rank: 0 for ranks in ranks_on.values() for rank in ranks}
    found: dict[int, list[int]] = {rank: [] for rank in sorted(loads)}
    # Large ones first: small ones even out what is left.
    for index in sorted(range(len(nbytes)), key=lambda index: (-nbytes[index], index)):
        ranks = [rank for host in hosts_with[index] for rank in ranks_on.get(host, ())]
        if not ranks:
            raise NotFoundError(f"file {index} of the checkpoint is on no host that takes part")
        chosen = min(ranks, key=lambda rank: (loads[rank], rank))
        loads[chosen] += nbytes[index]
        found[chosen].append(index)
    return {rank: sorted(indices) for rank, indices in found.items()}

"""Do ranks that hold the same box hold the same values?

Each rank digests what it shares with others, for each set of holders one digest; the chair
compares. Small tensors are digested whole, of large ones some blocks, or all if asked.
"""

# torch and NumPy leave from_numpy(), tolist() and the like untyped.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Literal

import torch
import xxhash

from shardkeep.errors import ConflictError, name_ranks
from shardkeep.layouts import Layout, Mesh, MeshLayout, Part, Replicate
from shardkeep.plan.divide import replica_count
from shardkeep.state.frozen import FrozenTensor, Memory, thawed
from shardkeep.transfer.write import as_bytes, lies_in_one_piece

CheckReplicas = Literal["sample", "all", "none"]
Holders = tuple[int, ...]
_WHOLE_NBYTES = 64 * 1024
_SAMPLE_NBYTES = 4096
_SAMPLES = 16


def digest_replicas(
    layouts: Mapping[str, Layout],
    memory: Mapping[str, Sequence[Memory]],
    me: int,
    check: CheckReplicas,
) -> dict[Holders, dict[str, int]]:
    """For each set of ranks that share boxes with me: the digest of what we share, by key."""
    found: dict[Holders, dict[str, int]] = {}
    if check == "none":
        return found
    # Layouts of tensors alike are one object.
    distinct = {id(layout): layout for layout in layouts.values()}
    alone = {one for one, layout in distinct.items() if _is_held_once(layout)}
    for key, layout in layouts.items():
        if id(layout) in alone:
            continue
        for part in layout.parts_of(me):
            holders = holders_of_part(layout, part)
            if len(holders) > 1:
                view = memory[key][part.buffer][part.place.slices()]
                found.setdefault(holders, {})[f"{key} {part.box}"] = _digest(view, check)
    return found


def _is_held_once(layout: Layout) -> bool:
    return isinstance(layout, MeshLayout) and replica_count(layout) == 1


def holders_of_part(layout: Layout, part: Part) -> Holders:
    """The ranks that hold the box of this part, in order."""
    if isinstance(layout, MeshLayout):
        replicated = tuple(isinstance(p, Replicate) for p in layout.placements)
        if not any(replicated):
            return (part.rank,)
        return _mesh_holders(layout.mesh, replicated, part.rank)
    return tuple(sorted(other.rank for other in layout.holders[part.box]))


@lru_cache(maxsize=4096)
def _mesh_holders(mesh: Mesh, replicated: tuple[bool, ...], rank: int) -> Holders:
    """The ranks whose coordinates differ from mine on replicated axes only."""
    mine = mesh.coordinate_of(rank)
    if mine is None:
        return (rank,)
    grid = torch.tensor(mesh.ranks).reshape(mesh.shape)
    place = [slice(None) if free else at for free, at in zip(replicated, mine, strict=True)]
    return tuple(sorted(grid[tuple(place)].flatten().tolist()))


def _digest(view: Memory, check: CheckReplicas) -> int:
    if check == "all" or view.nbytes <= _WHOLE_NBYTES:
        return _digest_whole(view)
    return _digest_sample(view)


def _digest_whole(view: Memory) -> int:
    from shardkeep.plan import cut

    hasher = xxhash.xxh3_64()
    for box in cut(tuple(view.shape), max(1, (4 << 20) // view.itemsize)):
        hasher.update(as_bytes(view[box.slices()]).data)
    return hasher.intdigest()


def _digest_sample(view: Memory) -> int:
    """Blocks spread evenly over the cells, the first and the last among them."""
    hasher = xxhash.xxh3_64()
    count = _SAMPLE_NBYTES // view.itemsize
    last = view.numel() - count
    starts = [last * sample // (_SAMPLES - 1) for sample in range(_SAMPLES)]
    if isinstance(view, torch.Tensor) and lies_in_one_piece(view):
        # There may be hundreds of thousands of samples: none becomes a tensor.
        data, size = as_bytes(view).data, view.itemsize
        for start in starts:
            hasher.update(data[start * size : (start + count) * size])
    else:
        for start in starts:
            hasher.update(as_bytes(_cells(view, start, count)).data)
    return hasher.intdigest()


def _cells(view: Memory, start: int, count: int) -> Memory:
    """`count` cells from the `start`-th in row-major order."""
    if view.is_contiguous():
        flat = view.flat() if isinstance(view, FrozenTensor) else view.view(-1)
        return flat[start : start + count]
    view = thawed(view)
    indices = torch.arange(start, start + count, device=view.device)
    return view[torch.unravel_index(indices, view.shape)]


def combine(shared: Mapping[Holders, Mapping[str, int]]) -> list[tuple[str, str]]:
    """One digest for each set of holders, which goes by a name of its own.

    Not by its ranks: thousands of ranks would each name thousands.
    """
    made: list[tuple[str, str]] = []
    for holders, digests in shared.items():
        hasher = xxhash.xxh3_128()
        for key in sorted(digests):
            hasher.update(f"{key}={digests[key]};".encode())
        made.append((_name(holders), hasher.hexdigest()))
    return made


def _name(holders: Holders) -> str:
    return xxhash.xxh3_128_hexdigest(array("q", holders).tobytes())


def find_divergence(
    reports: Mapping[int, Sequence[tuple[str, str]]],
) -> tuple[int, int] | None:
    """Two ranks that hold the same boxes with different values; None if there are none."""
    first: dict[str, tuple[int, str]] = {}
    for rank, shared in reports.items():
        for holders, digest in shared:
            other, expected = first.setdefault(holders, (rank, digest))
            if digest != expected:
                return other, rank
    return None


def divergence_error(ranks: tuple[int, int], digests: Sequence[Mapping[str, int]]) -> ConflictError:
    """The error that names what differs between two ranks."""
    a, b = digests
    keys = [key for key in a if key in b and a[key] != b[key]] or sorted(a.keys() ^ b.keys())
    named = ", ".join(keys[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
    return ConflictError(
        f"{name_ranks(ranks)} hold the same boxes with different values: {named}. Replicas that "
        "drifted apart would be saved as one of them; synchronise them, give what is meant to "
        "differ a key of its own or per_rank(value), or pass check_replicas='none'"
    )

"""How do the sharded leaves of a state dict become whole, on all ranks or on some?

All leaves travel in one exchange, each box once to each rank that wants it; ranks that want
nothing receive nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from shardkeep.errors import InvalidError, RanksDisagreeError, name_ranks
from shardkeep.layouts import Layout
from shardkeep.plan import (
    Entry,
    RankMoves,
    entries_of,
    holders_of,
    plan_moves,
    source_layouts,
)
from shardkeep.ranks import RankGroup, Shipment, Views, agree_equal, share_views, ship
from shardkeep.sharded.leaves import is_on_meta, leaf_kind, local_tensors
from shardkeep.state.iterate import empty_result, on_cpu
from shardkeep.state.keys import key_text, wire_key
from shardkeep.state.paths import Path, path_text
from shardkeep.state.tree import leaves, map_tree
from shardkeep.state.values import check_value

_WHAT = "gather_state_dict"


def gather_state_dict(
    state_dict: Any,
    *,
    pg: Any = None,
    device: torch.device | str | None = None,
    cpu_offload: bool = False,
    ranks_only: Sequence[int] = (),
    type_check: bool = True,
) -> Any:
    """The same tree with every DTensor and ShardedTensor whole. SPMD.

    Only the group ranks in `ranks_only` receive it, all if that is empty; the others get an
    empty dict. Gathered tensors are made on `device`, else where their shards are, or on the CPU
    with `cpu_offload`. Plain tensors and values are handed on as they are (moved if one of these
    options says so); DTensors with partial sums are reduced.
    """
    group = RankGroup.of(pg)
    receivers = _receivers(group, ranks_only)
    place = torch.device("cpu") if cpu_offload else torch.device(device) if device else None
    job = _Gather(group, receivers, place)
    views = share_views(group, _WHAT, lambda: job.prepare(state_dict, type_check))
    wholes = job.run(views)
    if group.me not in receivers:
        return empty_result(state_dict)
    return map_tree(lambda path, leaf: _result(path, leaf, wholes, place), state_dict)


def _receivers(group: RankGroup, ranks_only: Sequence[int]) -> tuple[int, ...]:
    """The global ranks that get the result; all ranks must name the same."""

    def check() -> list[int]:
        wrong = [index for index in ranks_only if not 0 <= index < group.size]
        if wrong:
            raise InvalidError(f"ranks_only={wrong} are not ranks of a group of {group.size}")
        return sorted(set(ranks_only))

    agree_equal(group, f"{_WHAT}(ranks_only)", check)
    return tuple(group.ranks[index] for index in check()) or group.ranks


def _result(
    path: Path, leaf: Any, wholes: dict[Path, torch.Tensor], place: torch.device | None
) -> Any:
    if path in wholes:
        return wholes[path]
    if isinstance(leaf, torch.Tensor) and place is not None:
        return on_cpu(leaf) if place.type == "cpu" else leaf.to(place)
    return leaf


@dataclass
class _Gather:
    """One call: what this rank brings, and what it gets."""

    group: RankGroup
    receivers: tuple[int, ...]
    place: torch.device | None

    def prepare(self, state_dict: Any, type_check: bool) -> dict[str, Entry]:
        """My view; everything that can fail on this rank alone has been done after it."""
        self.sources: dict[str, torch.Tensor] = {}
        self.paths: dict[str, Path] = {}
        view: dict[str, Entry] = {}
        for path, leaf in leaves(state_dict):
            kind = leaf_kind(leaf)
            if kind is None and type_check:
                check_value(path, leaf)
            elif kind in ("dtensor", "sharded"):
                key = wire_key(path)
                self.sources[key], self.paths[key] = leaf, path
                view[key] = _entry(path, leaf)
        # After all checks: a mistake costs no memory.
        self.wholes = {key: self._allocate(leaf) for key, leaf in self.sources.items()}
        return view

    def _allocate(self, leaf: torch.Tensor) -> list[torch.Tensor]:
        if self.group.me not in self.receivers:
            return []
        return [torch.empty(leaf.shape, dtype=leaf.dtype, device=self.place or leaf.device)]

    def run(self, views: Views) -> dict[Path, torch.Tensor]:
        """The whole tensors by path, on receivers."""
        _require_same_keys(views)
        plans: dict[tuple[Entry | None, ...], RankMoves] = {}
        shipments: list[Shipment] = []
        # By key: each pair of ranks must pack and unpack in the same order, whatever their dicts'.
        for key, leaf in sorted(self.sources.items(), key=lambda item: item[0]):
            entries = entries_of(key, views)
            if entries not in plans:
                plans[entries] = self._plan(key, views)
            memory = local_tensors(_reduced(leaf))
            shipments.append(Shipment(plans[entries], leaf.dtype, memory, self.wholes[key]))
        ship(self.group, shipments, what=_WHAT)
        return {self.paths[key]: whole[0] for key, whole in self.wholes.items() if whole}

    def _plan(self, key: str, views: Views) -> RankMoves:
        sources = source_layouts(key_text(key), holders_of(key, views))
        target = Layout.replicated(sources[0].shape, self.receivers)
        return plan_moves(sources, target, self.group.me)


def _entry(path: Path, leaf: torch.Tensor) -> Entry:
    if is_on_meta(leaf):
        raise InvalidError(f"{path_text(path)} is on the meta device: it has no values to gather")
    layout = Layout.of(leaf) if not _is_partial(leaf) else _layout_when_reduced(leaf)
    return Entry(str(leaf.dtype), tuple(leaf.shape), layout)


def _is_partial(leaf: torch.Tensor) -> bool:
    return any(placement.is_partial() for placement in getattr(leaf, "placements", ()))


def _layout_when_reduced(leaf: Any) -> Layout:
    from shardkeep.layouts.reading import mesh_of

    return Layout.on_mesh(leaf.shape, mesh_of(leaf.device_mesh), _summed(leaf))


def _summed(leaf: Any) -> list[Any]:
    """The placements with partial sums replaced by replicas."""
    from torch.distributed.tensor import Replicate

    return [Replicate() if p.is_partial() else p for p in leaf.placements]


def _reduced(leaf: torch.Tensor) -> torch.Tensor:
    """The leaf with its partial sums added up: a collective of its mesh."""
    if not _is_partial(leaf):
        return leaf
    return cast("Any", leaf).redistribute(placements=_summed(leaf))


def _require_same_keys(views: Views) -> None:
    first, first_ranks = views[0]
    for view, ranks in views[1:]:
        for key in first.keys() ^ view.keys():
            holders = first_ranks if key in first else ranks
            raise RanksDisagreeError(
                f"{key_text(key)!r} is sharded on {name_ranks(holders)} only; gather_state_dict "
                "needs the same sharded keys on all ranks: pass pg= with the ranks that share them"
            )

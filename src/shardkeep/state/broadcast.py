"""How does one rank's full state dict reach the shards of all?

The source announces what it has, each rank says which boxes it needs, and gets just these, all
tensors in one exchange. What every rank needs whole goes out as a broadcast.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import torch

from shardkeep.errors import InvalidError
from shardkeep.layouts import Layout
from shardkeep.manifest import decode_value, encode_value
from shardkeep.plan import (
    Entry,
    Holders,
    RankMoves,
    entries_of,
    held_layout,
    holders_of,
    plan_moves,
)
from shardkeep.ranks import (
    RankGroup,
    Shipment,
    Views,
    agree,
    broadcast_bytes,
    share_from,
    share_views,
    ship,
)
from shardkeep.sharded.leaves import is_on_meta, leaf_kind, local_tensors
from shardkeep.state.keys import wire_key
from shardkeep.state.paths import Path, path_text
from shardkeep.state.placing import place
from shardkeep.state.removing import remove_leaves
from shardkeep.state.targets import Target, filled, target_for
from shardkeep.state.tree import leaves

_WHAT = "broadcast_state_dict"


def broadcast_state_dict(
    full_state_dict: Any,
    local_state_dict: Any,
    device: torch.device | str | None = None,
    pg: Any = None,
    strict: bool = False,
    cpu_offload: bool = False,
    *,
    src: int = 0,
) -> None:
    """Fill `local_state_dict` in place from the full one of group rank `src`. SPMD.

    DTensors, ShardedTensors and tensors are filled where they are, in their dtype; those on the
    meta device are made on `device` (CPU by default). Keys that a rank does not have are not sent
    to it; keys that the source does not have are removed if `strict`, else left. The full state
    dict of the other ranks is not looked at.
    """
    group = RankGroup.of(pg)
    where = torch.device(device) if device is not None else None
    offer = _announce(group, full_state_dict, src)
    job = _Broadcast(group, src, where)
    views = share_views(group, _WHAT, lambda: job.prepare(offer, local_state_dict))
    job.run(offer, views)
    news = {t.path: filled(t, cpu_offload=cpu_offload) for t in job.targets.values()}
    place(local_state_dict, news | dict(job.values))
    if strict:
        remove_leaves(local_state_dict, keep=set(offer.tensors) | set(offer.values))


class _Offered(NamedTuple):
    """What is known everywhere of a tensor that the source has."""

    dtype: str
    shape: tuple[int, ...]


@dataclass
class _Offer:
    """What the source has: tensors by dtype and shape, values themselves."""

    tensors: dict[str, _Offered] = field(default_factory=dict[str, _Offered])
    values: dict[str, Any] = field(default_factory=dict[str, Any])
    sources: dict[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])
    """The tensors themselves, on the source."""


def _announce(group: RankGroup, full: Any, src: int) -> _Offer:
    """The source's offer on all ranks."""
    payloads: list[bytes] = []
    offer = _Offer()

    def check() -> bytes:
        if not 0 <= src < group.size:
            raise InvalidError(f"src={src} is not a rank of a group of {group.size}")
        if group.my_index == src:
            _collect(offer, full)
            payloads.append(_encode_offer(offer))
        nbytes = len(payloads[0]) if payloads else 0
        return msgspec.json.encode([src, nbytes])

    facts = [msgspec.json.decode(fact) for fact in agree(group, _WHAT, check)]
    _require_one_source(group, [fact[0] for fact in facts])
    data = share_from(group, src, payloads[0] if payloads else None, facts[src][1])
    return offer if payloads else _decode_offer(data)


def _encode_offer(offer: _Offer) -> bytes:
    """The offer as JSON; shapes and dtypes, which repeat, stand in a table of their own."""
    kinds: dict[_Offered, int] = {}
    numbers = [kinds.setdefault(kind, len(kinds)) for kind in offer.tensors.values()]
    return msgspec.json.encode([list(kinds), list(offer.tensors), numbers, offer.values])


def _decode_offer(data: bytes) -> _Offer:
    form = tuple[list[_Offered], list[str], list[int], dict[str, Any]]
    kinds, keys, numbers, values = msgspec.json.decode(data, type=form)
    tensors = {key: kinds[number] for key, number in zip(keys, numbers, strict=True)}
    return _Offer(tensors, values)


def _require_one_source(group: RankGroup, named: Sequence[int]) -> None:
    if len(set(named)) > 1:
        said = ", ".join(
            f"rank {rank}: src={src}" for rank, src in zip(group.ranks, named, strict=True)
        )
        raise InvalidError(f"{_WHAT}: ranks name different sources ({said})")


def _collect(offer: _Offer, full: Any) -> None:
    kinds: dict[_Offered, _Offered] = {}
    for path, leaf in leaves(full):
        key = wire_key(path)
        if leaf_kind(leaf) is None:
            offer.values[key] = _encoded(path, leaf)
        else:
            offer.sources[key] = _source(path, leaf)
            kind = _Offered(str(leaf.dtype).removeprefix("torch."), tuple(leaf.shape))
            offer.tensors[key] = kinds.setdefault(kind, kind)


def _encoded(path: Path, value: object) -> Any:
    try:
        return encode_value(value)
    except InvalidError as error:
        raise InvalidError(f"{path_text(path)}: {error}") from error


def _source(path: Path, leaf: torch.Tensor) -> torch.Tensor:
    """The memory of a full tensor; a distributed one must be whole on this rank."""
    if is_on_meta(leaf):
        raise InvalidError(f"{path_text(path)} is on the meta device: it has no values to send")
    parts = local_tensors(leaf)
    if len(parts) != 1 or parts[0].shape != leaf.shape:
        raise InvalidError(
            f"{path_text(path)} is sharded, this rank holds a part of it only; "
            "make it whole first with gather_state_dict(full, ranks_only=(src,))"
        )
    return parts[0]


class _Broadcast:
    """One call: what this rank needs, and how it comes."""

    def __init__(self, group: RankGroup, src: int, device: torch.device | None) -> None:
        self.group = group
        self.src = src
        self.device = device
        self.targets: dict[str, Target] = {}
        self.values: list[tuple[Path, object]] = []

    def prepare(self, offer: _Offer, local: Any) -> dict[str, Entry]:
        """My view of the offered tensors that I have a place for."""
        here = {wire_key(path): (path, leaf) for path, leaf in leaves(local)}
        view: dict[str, Entry] = {}
        for key, (dtype, shape) in offer.tensors.items():
            if key in here:
                target = target_for(*here[key], shape, getattr(torch, dtype), self.device)
                self.targets[key] = target
                # Ranks may keep a tensor in dtypes of their own: on the way it has the source's.
                view[key] = Entry(dtype, shape, target.entry.layout)
        self.values = [
            (here[key][0], decode_value(data)) for key, data in offer.values.items() if key in here
        ]
        return view

    def run(self, offer: _Offer, views: Views) -> None:
        """Fill the targets."""
        plans: dict[tuple[Entry | None, ...], RankMoves | None] = {}
        shipments: list[Shipment] = []
        everywhere: list[str] = []
        for key in offer.tensors:
            entries = entries_of(key, views)
            if entries not in plans:
                plans[entries] = self._plan(holders_of(key, views))
            moves = plans[entries]
            if moves is None:
                everywhere.append(key)
            else:
                shipments.append(self._shipment(key, offer, moves))
        ship(self.group, shipments, what=_WHAT)
        self._broadcast(offer, everywhere)

    def _plan(self, holders: Holders) -> RankMoves | None:
        """What I send and receive of a tensor; None if all ranks need all of it."""
        if not holders:
            return RankMoves((), (), ())
        entry, ranks = holders[0]
        if entry.layout is None and len(ranks) == self.group.size:
            return None
        target = held_layout(holders)
        source = Layout.replicated(target.shape, [self.group.ranks[self.src]])
        return plan_moves((source,), target, self.group.me)

    def _shipment(self, key: str, offer: _Offer, moves: RankMoves) -> Shipment:
        mine = self.targets.get(key)
        return Shipment(
            moves,
            getattr(torch, offer.tensors[key].dtype),
            [offer.sources[key]] if key in offer.sources else (),
            mine.buffers if mine else (),
        )

    def _broadcast(self, offer: _Offer, keys: Sequence[str]) -> None:
        sources = [offer.sources[key] for key in keys if key in offer.sources]
        dtypes = [getattr(torch, offer.tensors[key].dtype) for key in keys]
        targets = [self.targets[key].buffers[0] for key in keys]
        broadcast_bytes(self.group, self.src, sources, targets, dtypes)

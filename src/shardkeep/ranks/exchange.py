"""How do planned boxes get from one rank's memory to another's?

Boxes for one peer are packed into messages of bounded size; a large box that lies in one piece
travels straight from and into tensor memory. Only bytes travel, so every dtype does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from shardkeep.boxes import Box
from shardkeep.errors import RankFailedError
from shardkeep.plan import Move, RankMoves, cut, fill
from shardkeep.ranks.group import RankGroup, Work

_TAG = 0x5ED
_TAG_COUNT = 4096
_ROUNDS_IN_FLIGHT = 2
_MIN_MESSAGE_NBYTES = 256 * 1024
DEFAULT_BUFFER_NBYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Shipment:
    """One tensor's moves, with this rank's memory on both sides.

    `dtype` is what travels; where the target's dtype differs, values are converted on arrival.
    """

    moves: RankMoves
    dtype: torch.dtype
    source: Sequence[torch.Tensor]
    target: Sequence[torch.Tensor]


@dataclass(slots=True)
class _Lane:
    """All that goes one way between me and one peer: boxes of memory, cut into messages."""

    dtype: list[torch.dtype] = field(default_factory=list[torch.dtype])
    views: list[torch.Tensor] = field(default_factory=list[torch.Tensor])
    messages: list[range] = field(default_factory=list[range])

    def add(self, view: torch.Tensor, dtype: torch.dtype, max_nbytes: int) -> None:
        max_numel = max(1, max_nbytes // dtype.itemsize)
        if view.numel() <= max_numel:
            self._append(view, dtype)
            return
        for box in cut(tuple(view.shape), max_numel):
            self._append(view[box.slices()], dtype)

    def _append(self, view: torch.Tensor, dtype: torch.dtype) -> None:
        self.views.append(view)
        self.dtype.append(dtype)

    def seal(self, max_nbytes: int) -> None:
        sizes = [v.numel() * d.itemsize for v, d in zip(self.views, self.dtype, strict=True)]
        self.messages = list(fill(sizes, max_nbytes))


@torch.no_grad()
def ship(
    group: RankGroup,
    shipments: Sequence[Shipment],
    *,
    what: str,
    buffer_nbytes: int = DEFAULT_BUFFER_NBYTES,
) -> None:
    """Carry out every shipment; on return the targets of this rank are filled.

    SPMD over the group's ranks that send or receive. Extra memory stays below about
    `buffer_nbytes`, whatever the tensors' size.
    """
    for shipment in shipments:
        for move in shipment.moves.copies:
            _target_view(shipment, move).copy_(_source_view(shipment, move))
    if group.size > 1:
        _exchange(group, shipments, what, _message_nbytes(group, buffer_nbytes))


def _message_nbytes(group: RankGroup, buffer_nbytes: int) -> int:
    """The same on all ranks: a message out and one in for each peer, in each round in flight."""
    return max(_MIN_MESSAGE_NBYTES, buffer_nbytes // (2 * _ROUNDS_IN_FLIGHT * group.size))


def _exchange(group: RankGroup, shipments: Sequence[Shipment], what: str, max_nbytes: int) -> None:
    outgoing, incoming = _lanes(shipments, max_nbytes)
    lanes = [*outgoing.values(), *incoming.values()]
    round_count = max((len(lane.messages) for lane in lanes), default=0)
    in_flight: list[_Round] = []
    for number in range(round_count):
        # Message n of a pair belongs to round n on both sides. The least round that anybody waits
        # in has been posted by both of its ends, so the ranks cannot wait in a circle.
        parcels = _parcels(group, outgoing, incoming, number)
        in_flight.append(_start(group, parcels, number))
        if len(in_flight) == _ROUNDS_IN_FLIGHT:
            _finish(in_flight.pop(0), what)
    for round_ in in_flight:
        _finish(round_, what)


def _lanes(
    shipments: Sequence[Shipment], max_nbytes: int
) -> tuple[dict[int, _Lane], dict[int, _Lane]]:
    outgoing: dict[int, _Lane] = {}
    incoming: dict[int, _Lane] = {}
    for shipment in shipments:
        for move in shipment.moves.sends:
            lane = outgoing.setdefault(move.target_rank, _Lane())
            lane.add(_source_view(shipment, move), shipment.dtype, max_nbytes)
        for move in shipment.moves.receives:
            lane = incoming.setdefault(move.source_rank, _Lane())
            lane.add(_target_view(shipment, move), shipment.dtype, max_nbytes)
    for lane in (*outgoing.values(), *incoming.values()):
        lane.seal(max_nbytes)
    return outgoing, incoming


def _source_view(shipment: Shipment, move: Move) -> torch.Tensor:
    return _view(shipment.source[move.source_buffer], move.source_place)


def _target_view(shipment: Shipment, move: Move) -> torch.Tensor:
    return _view(shipment.target[move.target_buffer], move.target_place)


def _view(tensor: torch.Tensor, place: Box) -> torch.Tensor:
    return tensor if place.shape == tensor.shape else tensor[place.slices()]


@dataclass(frozen=True, slots=True)
class _Parcel:
    """A message: bytes to send, or room for bytes to arrive and where they go."""

    peer: int
    wire: torch.Tensor
    arrives: bool
    into: Sequence[torch.Tensor] = ()
    """What a staged arrival is unpacked into; empty when it lands in place."""
    dtypes: Sequence[torch.dtype] = ()


def _parcels(
    group: RankGroup, outgoing: dict[int, _Lane], incoming: dict[int, _Lane], number: int
) -> list[_Parcel]:
    """The round's messages, the same order of pairs on all ranks."""
    device = group.wire_device
    found = [
        _arrival(peer, lane, lane.messages[number], device)
        for peer, lane in sorted(incoming.items())
        if number < len(lane.messages)
    ]
    found += [
        _departure(peer, lane, lane.messages[number], device)
        for peer, lane in sorted(outgoing.items())
        if number < len(lane.messages)
    ]
    return found


def _departure(peer: int, lane: _Lane, message: range, device: torch.device) -> _Parcel:
    pieces = [_as_bytes(lane.views[index], device) for index in message]
    return _Parcel(peer, pieces[0] if len(pieces) == 1 else torch.cat(pieces), arrives=False)


def _arrival(peer: int, lane: _Lane, message: range, device: torch.device) -> _Parcel:
    views = [lane.views[index] for index in message]
    dtypes = [lane.dtype[index] for index in message]
    if len(views) == 1 and _is_wire(views[0], dtypes[0], device):
        return _Parcel(peer, _flat_bytes(views[0]), arrives=True)
    nbytes = sum(v.numel() * d.itemsize for v, d in zip(views, dtypes, strict=True))
    wire = torch.empty(nbytes, dtype=torch.uint8, device=device)
    return _Parcel(peer, wire, arrives=True, into=views, dtypes=dtypes)


def _is_wire(view: torch.Tensor, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether bytes can arrive straight in this memory."""
    plain = view.is_contiguous() and not view.is_conj() and not view.is_neg()
    return plain and view.dtype == dtype and view.device == device


def _as_bytes(view: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The view's bytes in row-major order on the wire's device, without a copy where it can."""
    plain = view.resolve_conj().resolve_neg().contiguous()
    return _flat_bytes(plain).to(device)


def _flat_bytes(contiguous: torch.Tensor) -> torch.Tensor:
    """The memory of a contiguous tensor as bytes."""
    # A tensor of one cell is contiguous by any stride, but only by stride 1 it shows its bytes.
    return contiguous.as_strided((contiguous.numel(),), (1,)).view(torch.uint8)


@dataclass(frozen=True, slots=True)
class _Round:
    """The messages of one round, under way."""

    parcels: Sequence[_Parcel]
    works: Sequence[tuple[Work, Sequence[int]]]
    """Each with the peers that it depends on."""


def _start(group: RankGroup, parcels: list[_Parcel], number: int) -> _Round:
    tag = _TAG + number % _TAG_COUNT
    messenger = group.messenger
    if messenger is None or not parcels:
        return _Round((), ())
    if group.wire_device.type == "cpu":
        works = [
            (
                (messenger.recv if parcel.arrives else messenger.send)(
                    [parcel.wire], group.index_of(parcel.peer), tag
                ),
                (parcel.peer,),
            )
            for parcel in parcels
        ]
        return _Round(parcels, works)
    # Device backends run messages in the order of their calls: post a round as one batch.
    batch = [
        dist.P2POp(
            dist.irecv if parcel.arrives else dist.isend,
            parcel.wire,
            parcel.peer,
            group=messenger,  # type: ignore[arg-type]
            tag=tag,
        )
        for parcel in parcels
    ]
    peers = sorted({parcel.peer for parcel in parcels})
    return _Round(parcels, [(work, peers) for work in dist.batch_isend_irecv(batch)])


def _finish(round_: _Round, what: str) -> None:
    for work, peers in round_.works:
        try:
            work.wait()
        except RuntimeError as error:
            raise RankFailedError(
                dict.fromkeys(peers, f"no message came through ({error})"), what
            ) from error
    for parcel in round_.parcels:
        _unpack(parcel)


def _unpack(parcel: _Parcel) -> None:
    if not parcel.into:
        return
    sizes = [
        view.numel() * dtype.itemsize
        for view, dtype in zip(parcel.into, parcel.dtypes, strict=True)
    ]
    pieces = torch.split_with_sizes(parcel.wire, sizes)
    for view, dtype, piece in zip(parcel.into, parcel.dtypes, pieces, strict=True):
        view.copy_(_as_dtype(piece, dtype).view(view.shape))


def _as_dtype(piece: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Bytes read as values; copied first where they do not lie on a boundary of the dtype."""
    if piece.storage_offset() % dtype.itemsize:
        piece = piece.clone()
    return piece.view(dtype)


@torch.no_grad()
def broadcast_bytes(
    group: RankGroup,
    index: int,
    sources: Sequence[torch.Tensor],
    targets: Sequence[torch.Tensor],
    dtypes: Sequence[torch.dtype],
    *,
    buffer_nbytes: int = DEFAULT_BUFFER_NBYTES,
) -> None:
    """Group rank `index`'s sources in every rank's targets, packed into few broadcasts. SPMD.

    `sources` are given on that rank alone; extra memory stays below `buffer_nbytes`.
    """
    max_nbytes = buffer_nbytes // 2
    sender, receiver = _Lane(), _Lane()
    for source, dtype in zip(sources, dtypes, strict=False):
        sender.add(source, dtype, max_nbytes)
    for target, dtype in zip(targets, dtypes, strict=True):
        receiver.add(target, dtype, max_nbytes)
    receiver.seal(max_nbytes)
    for message in receiver.messages:
        arrival = _arrival(group.me, receiver, message, group.wire_device)
        if group.my_index == index:
            arrival.wire.copy_(_departure(group.me, sender, message, group.wire_device).wire)
        group.broadcast(arrival.wire, index)
        _unpack(arrival)

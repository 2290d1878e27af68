"""How do planned boxes get from one rank's memory to another's?

In rounds of messages of bounded size. What lies in one piece travels straight from and into
tensor memory; the rest is packed and unpacked in a few buffers that are used again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from shardkeep.boxes import Box
from shardkeep.errors import RankFailedError
from shardkeep.plan import Move, RankMoves
from shardkeep.ranks.group import RankGroup, Work
from shardkeep.ranks.lanes import Lane, Lanes, Shipment, lanes_of
from shardkeep.ranks.neighbours import Line, Neighbours, is_worth_reading, neighbours_of
from shardkeep.ranks.pieces import Piece

_TAG = 0x5ED
_TAG_COUNT = 4096
_ROUNDS_IN_FLIGHT = 16
# Of these, so many may need buffers on both sides of every pair.
_ROUNDS_IN_BUFFERS = 2
_MIN_MESSAGE_NBYTES = 256 * 1024
DEFAULT_BUFFER_NBYTES = 64 * 1024 * 1024


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
    `buffer_nbytes`, whatever the tensors' size (a few times that where large tensors are not
    row-major).
    """
    for shipment in shipments:
        for move in shipment.moves.copies:
            shipment.target_piece(move).view().copy_(shipment.source_piece(move).view())
    if group.size > 1:
        _exchange(group, shipments, what, _message_nbytes(group, buffer_nbytes))


def _message_nbytes(group: RankGroup, buffer_nbytes: int) -> int:
    """The same on all ranks: a message out and one in for each peer, in each buffered round."""
    return max(_MIN_MESSAGE_NBYTES, buffer_nbytes // (2 * _ROUNDS_IN_BUFFERS * group.size))


def _exchange(group: RankGroup, shipments: Sequence[Shipment], what: str, max_nbytes: int) -> None:
    outgoing, incoming = lanes_of(shipments, max_nbytes)
    near = _meet(group, outgoing, incoming)
    lanes = [*outgoing.values(), *incoming.values()]
    rooms = _Rooms(group.wire_device)
    round_count = max((len(lane.messages) for lane in lanes), default=0)
    most_taken = (_ROUNDS_IN_BUFFERS - 1) * len(lanes)
    in_flight: deque[_Round] = deque()
    for number in range(round_count):
        # Message n of a pair belongs to round n on both sides. The least round that anybody waits
        # in has been posted by both of its ends, so the ranks cannot wait in a circle.
        while len(in_flight) == _ROUNDS_IN_FLIGHT or rooms.taken > most_taken:
            _finish(in_flight.popleft(), what, rooms)
        parcels = _parcels(outgoing, incoming, number, rooms)
        in_flight.append(_start(group, parcels, number, near))
    for round_ in in_flight:
        _finish(round_, what, rooms)


def _meet(group: RankGroup, outgoing: Lanes, incoming: Lanes) -> Neighbours:
    """Who can read whose memory; asked where there is a message that is worth it."""
    near = neighbours_of(group)
    if group.wire_device.type == "cpu":
        near.meet(group, _with_large(outgoing), _with_large(incoming))
    return near


def _with_large(lanes: Lanes) -> list[int]:
    return [
        peer
        for peer, lane in lanes.items()
        if any(is_worth_reading(sum(lane.sizes_of(message))) for message in lane.messages)
    ]


class _Rooms:
    """Buffers for messages that are packed or unpacked, used again round after round."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.taken = 0
        self._free: list[torch.Tensor] = []

    def take(self, nbytes: int) -> torch.Tensor:
        """A buffer of this size or larger."""
        self.taken += 1
        room = self._free.pop() if self._free else None
        if room is None or len(room) < nbytes:
            # The one that was too small is dropped: there are never more than are taken at once.
            room = torch.empty(nbytes, dtype=torch.uint8, device=self.device)
        return room

    def give_back(self, room: torch.Tensor) -> None:
        self.taken -= 1
        self._free.append(room)


@dataclass(frozen=True, slots=True)
class _Parcel:
    """A message: bytes to send, or room for bytes to arrive and where they go."""

    peer: int
    wire: torch.Tensor
    arrives: bool
    room: torch.Tensor | None = None
    """The buffer that the wire is part of; None when the wire is tensor memory."""
    pieces: Sequence[Piece] = ()
    """What an arrival is unpacked into."""
    sizes: list[int] = field(default_factory=list[int])


def _parcels(outgoing: Lanes, incoming: Lanes, number: int, rooms: _Rooms) -> list[_Parcel]:
    """The round's messages, the same order of pairs on all ranks."""
    found = [
        _arrival(peer, lane, lane.messages[number], rooms)
        for peer, lane in incoming.items()
        if number < len(lane.messages)
    ]
    found += [
        _departure(peer, lane, lane.messages[number], rooms)
        for peer, lane in outgoing.items()
        if number < len(lane.messages)
    ]
    return found


def _departure(peer: int, lane: Lane, message: range, rooms: _Rooms) -> _Parcel:
    pieces = lane.pieces_of(message)
    row = _lone_row(pieces, rooms.device)
    if row is not None:
        return _Parcel(peer, row, arrives=False)
    nbytes = sum(lane.sizes_of(message))
    room = rooms.take(nbytes)
    wire = room[:nbytes]
    if len(pieces) == 1:
        pieces[0].put(wire)
    else:
        torch.cat([piece.to_row(rooms.device) for piece in pieces], out=wire)
    return _Parcel(peer, wire, arrives=False, room=room)


def _arrival(peer: int, lane: Lane, message: range, rooms: _Rooms) -> _Parcel:
    pieces = lane.pieces_of(message)
    row = _lone_row(pieces, rooms.device)
    if row is not None:
        return _Parcel(peer, row, arrives=True)
    sizes = lane.sizes_of(message)
    room = rooms.take(sum(sizes))
    return _Parcel(peer, room[: sum(sizes)], True, room, pieces, sizes)


def _lone_row(pieces: Sequence[Piece], device: torch.device) -> torch.Tensor | None:
    """Memory that a message of one piece can travel from or into without a copy."""
    row = pieces[0].row() if len(pieces) == 1 else None
    return row if row is not None and row.device == device else None


@dataclass(frozen=True, slots=True)
class _Round:
    """The messages of one round, under way."""

    parcels: Sequence[_Parcel]
    works: Sequence[tuple[Work, Sequence[int]]]
    """Each with the peers that it depends on."""


def _start(group: RankGroup, parcels: list[_Parcel], number: int, near: Neighbours) -> _Round:
    tag = _TAG + number % _TAG_COUNT
    messenger = group.messenger
    if messenger is None or not parcels:
        return _Round((), ())
    if group.wire_device.type == "cpu":
        # Arrivals stand first, and so are waited for first: others wait until I have read theirs.
        works = [
            (_post(Line(messenger, group.index_of(parcel.peer), tag), parcel, near), (parcel.peer,))
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


def _post(line: Line, parcel: _Parcel, near: Neighbours) -> Work:
    move = line.fetch if parcel.arrives else line.offer
    return move(parcel.wire, parcel.peer, near)


def _finish(round_: _Round, what: str, rooms: _Rooms) -> None:
    for work, peers in round_.works:
        try:
            work.wait()
        except RuntimeError as error:
            raise RankFailedError(
                dict.fromkeys(peers, f"no message came through ({error})"), what
            ) from error
    for parcel in round_.parcels:
        _clear(parcel, rooms)


def _clear(parcel: _Parcel, rooms: _Rooms) -> None:
    """Unpack what has arrived, and have the buffer free again."""
    if parcel.pieces:
        rows = torch.split_with_sizes(parcel.wire, parcel.sizes)
        for piece, row in zip(parcel.pieces, rows, strict=True):
            piece.take(row)
    if parcel.room is not None:
        rooms.give_back(parcel.room)


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
    sender, receiver = Lane(arrives=False), Lane(arrives=True)
    for source, dtype in zip(sources, dtypes, strict=False):
        sender.add(Shipment(_NO_MOVES, dtype, [source], ()), _whole_move(source), max_nbytes)
    for target, dtype in zip(targets, dtypes, strict=True):
        receiver.add(Shipment(_NO_MOVES, dtype, (), [target]), _whole_move(target), max_nbytes)
    receiver.seal(max_nbytes)
    rooms = _Rooms(group.wire_device)
    for message in receiver.messages:
        arrival = _arrival(group.me, receiver, message, rooms)
        if group.my_index == index:
            departure = _departure(group.me, sender, message, rooms)
            arrival.wire.copy_(departure.wire)
            _clear(departure, rooms)
        group.broadcast(arrival.wire, index)
        _clear(arrival, rooms)


_NO_MOVES = RankMoves((), (), ())


def _whole_move(tensor: torch.Tensor) -> Move:
    whole = Box.whole(tensor.shape)
    return Move(0, 0, whole, 0, 0, whole)

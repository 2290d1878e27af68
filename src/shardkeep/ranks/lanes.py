"""Which boxes go between me and each peer, and in which messages?

Small boxes share a message, large ones are cut. Both ends decide by sizes alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from shardkeep.plan import Move, RankMoves, fill
from shardkeep.ranks.pieces import Piece

# Enough that the fixed cost of a message does not show; more would only take memory.
_MAX_PACKED_NBYTES = 128 * 1024
# What lies in one row needs no buffer, so that it may go in fewer, larger messages.
_ROW_FACTOR = 4
# Where that is so on all ranks, a message need not be small at all.
_MAX_DENSE_NBYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Shipment:
    """One tensor's moves, with this rank's memory on both sides.

    `dtype` is what travels; where the target's dtype differs, values are converted on arrival.
    `is_dense` says that the memory of all ranks is row-major and of this dtype; the same on all.
    """

    moves: RankMoves
    dtype: torch.dtype
    source: Sequence[torch.Tensor]
    target: Sequence[torch.Tensor]
    is_dense: bool = False

    def source_piece(self, move: Move) -> Piece:
        """Where a box comes from."""
        return Piece(self.source[move.source_buffer], move.source_place, self.dtype)

    def target_piece(self, move: Move) -> Piece:
        """Where a box goes."""
        return Piece(self.target[move.target_buffer], move.target_place, self.dtype)


@dataclass(slots=True)
class Lane:
    """All that goes one way between me and one peer, divided into messages.

    It refers to moves, which tensors share, and makes pieces for one message at a time: very
    many small boxes take little memory.
    """

    arrives: bool
    shipments: list[Shipment] = field(default_factory=list[Shipment])
    moves: list[Move] = field(default_factory=list[Move])
    messages: Sequence[range] = ()

    def add(self, shipment: Shipment, move: Move, max_nbytes: int) -> None:
        """Append a box, in several moves where it is larger than a message."""
        itemsize = shipment.dtype.itemsize
        if move.is_row:
            max_nbytes = _MAX_DENSE_NBYTES if shipment.is_dense else _ROW_FACTOR * max_nbytes
        small = move.numel * itemsize <= max_nbytes
        moves = (move,) if small else tuple(move.cut(max(1, max_nbytes // itemsize)))
        self.moves += moves
        self.shipments += (shipment,) * len(moves)

    def seal(self, max_nbytes: int) -> None:
        """Divide what was added into messages."""
        sizes = self.sizes_of(range(len(self.moves)))
        self.messages = list(fill(sizes, min(max_nbytes, _MAX_PACKED_NBYTES)))

    def sizes_of(self, message: range) -> list[int]:
        """The bytes of each of the message's boxes."""
        return [self.moves[index].numel * self.shipments[index].dtype.itemsize for index in message]

    def pieces_of(self, message: range) -> list[Piece]:
        """The memory of each of the message's boxes."""
        if self.arrives:
            return [self.shipments[index].target_piece(self.moves[index]) for index in message]
        return [self.shipments[index].source_piece(self.moves[index]) for index in message]


Lanes = Mapping[int, Lane]
"""By peer, in the order of peers."""


def lanes_of(shipments: Sequence[Shipment], max_nbytes: int) -> tuple[Lanes, Lanes]:
    """All that I send, and all that I receive, in messages of at most `max_nbytes`."""
    outgoing: dict[int, Lane] = {}
    incoming: dict[int, Lane] = {}
    for shipment in shipments:
        for move in shipment.moves.sends:
            if move.target_rank not in outgoing:
                outgoing[move.target_rank] = Lane(arrives=False)
            outgoing[move.target_rank].add(shipment, move, max_nbytes)
        for move in shipment.moves.receives:
            if move.source_rank not in incoming:
                incoming[move.source_rank] = Lane(arrives=True)
            incoming[move.source_rank].add(shipment, move, max_nbytes)
    for lane in (*outgoing.values(), *incoming.values()):
        lane.seal(max_nbytes)
    return dict(sorted(outgoing.items())), dict(sorted(incoming.items()))

"""Who sends which boxes to whom, when a tensor goes from one layout to another?

Every rank computes its own part of the answer from the two layouts alone, and sender and
receiver arrive at the same order, so nothing has to be negotiated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from shardkeep.boxes import Box, byte_ranges, meetings
from shardkeep.errors import CoverError
from shardkeep.layouts import Layout, Part
from shardkeep.plan.messages import cut

# Boxes of fewer cells fit into one message in any case.
_LARGE_NUMEL = 2**15


@dataclass(frozen=True, slots=True)
class Move:
    """One box on its way: from a place in the source's memory to a place in the target's."""

    source_rank: int
    source_buffer: int
    source_place: Box
    target_rank: int
    target_buffer: int
    target_place: Box
    is_row: bool = field(default=False, compare=False)
    """Whether the box is large and lies in one row of both memories, if these are row-major."""
    numel: int = field(init=False, compare=False, repr=False)
    """Kept, since one plan serves all tensors of a shape."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "numel", self.target_place.numel)

    def cut(self, max_numel: int) -> Iterator[Move]:
        """The same box in several moves of at most `max_numel` cells, in row-major order."""
        for box in cut(self.target_place.shape, max_numel):
            yield replace(
                self,
                source_place=box.shifted(self.source_place.start),
                target_place=box.shifted(self.target_place.start),
            )


@dataclass(frozen=True, slots=True)
class RankMoves:
    """All that one rank has to do: copies within itself, boxes to send, boxes to receive."""

    copies: tuple[Move, ...]
    sends: tuple[Move, ...]
    """Ordered by target rank, then by the target's memory."""
    receives: tuple[Move, ...]
    """Ordered by source rank, then by the target's memory."""


def plan_moves_once(sources: tuple[Layout, ...], target: Layout, rank: int) -> RankMoves:
    """What `rank` copies, sends and receives so that `target` is filled from `sources`.

    Each of `sources` is by itself a complete set of holders; a target rank reads from the
    first one that it takes part in. Replicas share the sending evenly.
    """
    # A layout that is listed twice would be sent from twice.
    sources = tuple(dict.fromkeys(sources))
    wanted = list(_incoming(sources, target, rank))
    _require_covered(target, rank, wanted)
    copies = tuple(move for move in wanted if move.source_rank == rank)
    receives = [move for move in wanted if move.source_rank != rank]
    sends = list(_outgoing(sources, target, rank))
    return RankMoves(
        copies,
        tuple(sorted(sends, key=lambda move: (move.target_rank, *_memory_order(move)))),
        tuple(sorted(receives, key=lambda move: (move.source_rank, *_memory_order(move)))),
    )


# The tensors of a model share few layouts, and the same ones come again at every step.
plan_moves = lru_cache(maxsize=4096)(plan_moves_once)


def _memory_order(move: Move) -> tuple[int, tuple[int, ...]]:
    return move.target_buffer, move.target_place.start


def _source_for(sources: tuple[Layout, ...], target_rank: int) -> Layout:
    for source in sources:
        if target_rank in source.ranks:
            return source
    return sources[target_rank % len(sources)]


def _incoming(sources: tuple[Layout, ...], target: Layout, rank: int) -> Iterator[Move]:
    source = _source_for(sources, rank)
    boxes, wanted = tuple(source.holders), target.parts_of(rank)
    for box_index, wanted_index, shared in meetings(boxes, [part.box for part in wanted]):
        part = wanted[wanted_index]
        holder = _holder(source.holders[boxes[box_index]], box_index, target, part)
        yield _move(source, holder, target, part, shared)


def _outgoing(sources: tuple[Layout, ...], target: Layout, rank: int) -> Iterator[Move]:
    for source in sources:
        mine = {part.box for part in source.parts_of(rank)}
        if not mine:
            continue
        boxes = [(index, box) for index, box in enumerate(source.holders) if box in mine]
        wanted = _parts_of_others(sources, source, target, rank)
        for position, wanted_index, shared in meetings(
            [box for _, box in boxes], [part.box for part in wanted]
        ):
            (box_index, box), part = boxes[position], wanted[wanted_index]
            holder = _holder(source.holders[box], box_index, target, part)
            if holder.rank == rank:
                yield _move(source, holder, target, part, shared)


def _parts_of_others(
    sources: tuple[Layout, ...], source: Layout, target: Layout, rank: int
) -> list[Part]:
    return [
        part
        for other in target.ranks
        if other != rank and _source_for(sources, other) is source
        for part in target.parts_of(other)
    ]


def _holder(holders: Sequence[Part], box_index: int, target: Layout, wanted: Part) -> Part:
    """The holder that serves `wanted`: its own rank if it can, else the replicas in turn."""
    if len(holders) == 1:
        return holders[0]
    number, seats = _seats(target)[wanted.box]
    turn = number + seats[wanted.rank]
    for holder in holders:
        if holder.rank == wanted.rank:
            return holder
        # Who serves itself takes no turn.
        turn -= seats.get(holder.rank, seats[wanted.rank]) < seats[wanted.rank]
    return holders[(turn + box_index) % len(holders)]


@lru_cache(maxsize=1024)
def _seats(target: Layout) -> dict[Box, tuple[int, dict[int, int]]]:
    """Each distinct box with its number, and the ranks that want it, numbered as well.

    By these numbers the turns go round, not by rank: the ranks that want a box may be every
    second one, and would all ask the same holder.
    """
    return {
        box: (number, {part.rank: seat for seat, part in enumerate(parts)})
        for number, (box, parts) in enumerate(target.holders.items())
    }


def _move(source: Layout, holder: Part, target: Layout, wanted: Part, shared: Box) -> Move:
    source_place, target_place = _place_of(shared, holder), _place_of(shared, wanted)
    is_row = (
        shared.numel >= _LARGE_NUMEL
        and _is_row(source, holder, source_place)
        and _is_row(target, wanted, target_place)
    )
    return Move(
        holder.rank,
        holder.buffer,
        source_place,
        wanted.rank,
        wanted.buffer,
        target_place,
        is_row,
    )


def _place_of(shared: Box, part: Part) -> Box:
    """Where in the part's memory the shared box lies."""
    if shared == part.box:
        return part.place
    return shared.relative_to(part.box.start).shifted(part.place.start)


def _is_row(layout: Layout, part: Part, place: Box) -> bool:
    shape = layout.buffer_shapes_of(part.rank)[part.buffer]
    return not byte_ranges(shape, place, itemsize=1).loops


def _require_covered(target: Layout, rank: int, moves: Iterable[Move]) -> None:
    # Distinct source boxes are disjoint, so equal volumes prove that no cell is missing.
    found: dict[int, int] = {}
    for move in moves:
        found[move.target_buffer] = found.get(move.target_buffer, 0) + move.numel
    for part in target.parts_of(rank):
        found[part.buffer] = found.get(part.buffer, 0) - part.box.numel
    if any(found.values()):
        raise CoverError(
            f"rank {rank} wants {', '.join(map(str, target.boxes_of(rank)))} of a tensor of shape "
            f"{target.shape}, but no rank holds all of it; check the source's layout"
        )

"""Where in the data is the run, so that every sample of an epoch is seen exactly once?

The samples that are left, in the epoch's order, are dealt out to the data-parallel ranks like
cards. A checkpoint keeps how many each rank has taken. A load among as many ranks goes on with the
cards that each of them has; among fewer or more, what is left is put together and dealt out anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np

from shardkeep.errors import ConflictError, InvalidError
from shardkeep.manifest import ListNode, Node, ValueNode
from shardkeep.ranks import RankGroup
from shardkeep.state.keeping import PerRank
from shardkeep.state.live import Merged, Stored
from shardkeep.state.paths import Path
from shardkeep.state.shuffle import shuffled

_AHEAD = 4096


class DataCursor:
    """This rank's position in an epoch of `size` samples.

    `rank` and `world` count data-parallel ranks: ranks of one tensor-parallel group pass the same
    `rank`, and take the same samples. By default each process is a data-parallel rank of its own.
    What is taken counts as seen: save after the step that used it.

    >>> cursor = DataCursor(10, rank=1, world=2, shuffle=False)
    >>> cursor.take(3)
    [1, 3, 5]
    >>> cursor.remaining
    2
    """

    is_divisible = False

    def __init__(
        self,
        size: int,
        *,
        rank: int | None = None,
        world: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
    ) -> None:
        group = RankGroup.of()
        self.rank = group.my_index if rank is None else rank
        self.world = group.size if world is None else world
        if size < 0 or not 0 <= self.rank < self.world:
            raise InvalidError(f"no rank {self.rank} of {self.world} with {size} samples")
        self.size = size
        self.seed = seed
        self.shuffle = shuffle
        self.epoch = 0
        self._start(())

    def _start(self, holes: Sequence[int], tail: int = 0) -> None:
        """What is left: some positions that were passed over, and all from `tail` on."""
        self._holes = list(holes)
        self._tail = tail
        self._taken = 0

    @property
    def left(self) -> int:
        """Samples of this epoch that no rank had taken when they were last dealt out."""
        return len(self._holes) + self.size - self._tail

    @property
    def remaining(self) -> int:
        """Samples of this epoch that this rank has still to take."""
        share = (self.left - self.rank + self.world - 1) // self.world
        return max(0, share) - self._taken

    def take(self, count: int) -> list[int]:
        """The next samples of this rank, which count as seen; fewer at the end of the epoch."""
        start, count = self._taken, min(count, self.remaining)
        self.advance(count)
        return self._samples(start, count)

    def advance(self, count: int) -> None:
        """Count samples as seen that were read from `upcoming`."""
        if not 0 <= count <= self.remaining:
            raise InvalidError(f"cannot take {count} samples, {self.remaining} remain")
        self._taken += count

    def upcoming(self) -> Iterator[int]:
        """The rest of this rank's samples, none of them counted as seen.

        For a loader that reads ahead; call `advance` for what the training has used.
        """
        at, stop = self._taken, self._taken + self.remaining
        while at < stop:
            found = self._samples(at, min(_AHEAD, stop - at))
            yield from found
            at += len(found)

    def next_epoch(self) -> None:
        """Begin the next epoch, in another order. On all ranks after the same step."""
        self.epoch += 1
        self._start(())

    def _samples(self, start: int, count: int) -> list[int]:
        dealt = self.rank + self.world * np.arange(start, start + count, dtype=np.int64)
        positions = self._positions(dealt)
        if not self.shuffle or not count:
            return positions.tolist()
        return shuffled(positions.astype(np.uint64), self.size, self.seed, self.epoch).tolist()

    def _positions(self, dealt: np.ndarray[Any, np.dtype[np.int64]]) -> Any:
        """Positions in the epoch's order of what is left, by number."""
        found = dealt - len(self._holes) + self._tail
        early = dealt < len(self._holes)
        found[early] = np.asarray(self._holes, np.int64)[dealt[early]]
        return found

    # As a part of a state tree

    def kept(self) -> dict[str, Any]:
        return {
            "size": self.size,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "epoch": self.epoch,
            "world": self.world,
            "holes": list(self._holes),
            "tail": self._tail,
            "taken": PerRank([self.rank, self._taken]),
        }

    def wanted(self, stored: Stored) -> dict[str, Any]:
        size = _value(stored.at("size").node)
        if size not in (None, self.size):
            raise ConflictError(
                f"the data had {size:,} samples when the run was saved and has {self.size:,} now: "
                "positions in one are none in the other"
            )
        names = ("size", "seed", "shuffle", "epoch", "world", "tail")
        holes = stored.at("holes").node
        world = _value(stored.at("world").node)
        return {
            **dict.fromkeys(names),
            "holes": [None] * (len(holes.items) if isinstance(holes, ListNode) else 0),
            "taken": Merged(lambda said: merge_counts(said, world)),
        }

    def give(self, state: Mapping[str, Any], loaded: Set[Path]) -> None:
        self.seed, self.shuffle = state["seed"], state["shuffle"]
        self.epoch = state["epoch"]
        self._start(state["holes"], state["tail"])
        counts: Sequence[int] = state["taken"]
        if len(counts) == self.world:
            self._taken = counts[self.rank]
        else:
            self._start(*self._rest(counts))

    def _rest(self, counts: Sequence[int]) -> tuple[list[int], int]:
        """What no rank has taken: positions before the last that one has, and the rest."""
        world = len(counts)
        seen = max(
            (r + world * (taken - 1) + 1 for r, taken in enumerate(counts) if taken), default=0
        )
        missed = sorted(
            dealt
            for rank, taken in enumerate(counts)
            for dealt in range(rank + world * taken, seen, world)
        )
        holes = self._positions(np.asarray(missed, np.int64)).tolist()
        return [*holes, *self._holes[seen:]], self._tail + max(0, seen - len(self._holes))


def _value(node: Node | None) -> Any:
    return node.value if isinstance(node, ValueNode) else None


def merge_counts(said: Sequence[Sequence[int]], world: int) -> list[int]:
    """How many samples each data-parallel rank has taken, of what each process said."""
    taken: dict[int, int] = {}
    for rank, count in said:
        if taken.setdefault(rank, count) != count:
            raise ConflictError(
                f"processes of data-parallel rank {rank} have taken {taken[rank]} and {count} "
                "samples: they must take the same"
            )
    if sorted(taken) != list(range(world)):
        raise ConflictError(
            f"the data was dealt out to {world} data-parallel ranks, but those that saved are "
            f"{sorted(taken)}: give each process its rank= and the same world="
        )
    return [taken[rank] for rank in range(world)]

"""Who reads which bytes, when several ranks want the same ones, or not everyone can reach them?

Each window of a file is read by one rank, which passes it on to all that want it. Files are cut
into stripes; each stripe has a broker, known to all, and only the broker hears what is wanted of
it: no rank ever learns everybody's wants. Where all ranks want the same, nobody needs to ask.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import NamedTuple

from shardkeep.errors import NotFoundError

# What ranks would read together, of the bytes that there are: for less, talking takes longer.
_WORTH = 1.05
# What ranks may read in vain, of the bytes that they want, and at least: to meet takes time, too.
_WORTH_NEAR = 0.5
_MIN_WASTE_NBYTES = 256 * 1024 * 1024


class Window(NamedTuple):
    """Bytes of a file within one of its stripes; in order, windows are by file and place."""

    file: int
    stripe: int
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        return self.stop - self.start


class SharedRead(NamedTuple):
    """A window, the rank that reads it and the ranks that want it."""

    window: Window
    reader: int
    takers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reach:
    """Which ranks have a file at hand, by the file's index, and whether all can fetch it.

    Without any file near, all ranks reach all files alike.
    """

    near: Mapping[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    far: bool = True

    def readers(self, file: int, takers: Sequence[int]) -> Sequence[int]:
        """The ranks that may read it, all at the same cost: rather those that want it."""
        near = self.near.get(file, ())
        wanting = [rank for rank in takers if rank in near]
        if wanting or near:
            return wanting or near
        if not self.far:
            raise NotFoundError(
                f"file {file} of the checkpoint is on no host that takes part, nor in the slow tier"
            )
        return takers


class Stake(NamedTuple):
    """What one rank wants of a checkpoint."""

    wanted_nbytes: int
    read_nbytes: int
    """What it would read by itself: also what lies between the bytes that it wants."""
    tensors_nbytes: int
    """Of all tensors of which it wants something, whole."""


def is_worth_sharing(stakes: Iterable[Stake]) -> bool:
    """Whether ranks that read by themselves would read much of it more than once.

    >>> is_worth_sharing([Stake(50, 50, 100), Stake(51, 51, 100)])
    False
    >>> is_worth_sharing(2 * [Stake(50, 99, 100)])
    True
    """
    several = list(stakes)
    all_read = sum(one.read_nbytes for one in several)
    return all_read > _WORTH * max((one.tensors_nbytes for one in several), default=0)


def is_worth_sharing_near(stakes: Iterable[Stake]) -> bool:
    """The same where all is at hand, as in a page cache: would they read much that they don't want?

    What a rank does want, it reads as fast as it could take it from another.

    >>> is_worth_sharing_near(2 * [Stake(10**9, 10**9, 10**9)])
    False
    >>> is_worth_sharing_near(2 * [Stake(10**9, 2 * 10**9, 2 * 10**9)])
    True
    """
    several = list(stakes)
    wanted = sum(one.wanted_nbytes for one in several)
    waste = sum(one.read_nbytes for one in several) - wanted
    return waste > max(_MIN_WASTE_NBYTES, _WORTH_NEAR * wanted)


def joined(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Disjoint spans, in order; those that overlap or touch become one.

    >>> joined([(4, 6), (0, 2), (1, 4), (8, 9)])
    [(0, 6), (8, 9)]
    """
    found: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(stop, found[-1][1])
        elif start < stop:
            found.append((start, stop))
    return found


def windows_of(
    file: int, spans: Iterable[tuple[int, int]], *, origin: int, stripe_nbytes: int
) -> Iterator[Window]:
    """The spans, cut where stripes begin; the first stripe begins at `origin`.

    >>> [tuple(one) for one in windows_of(3, [(10, 18)], origin=2, stripe_nbytes=10)]
    [(3, 0, 10, 12), (3, 1, 12, 18)]
    """
    for start, stop in joined(spans):
        at = start
        while at < stop:
            stripe = (at - origin) // stripe_nbytes
            end = min(stop, origin + (stripe + 1) * stripe_nbytes)
            yield Window(file, stripe, at, end)
            at = end


def broker_of(window: Window, members: Sequence[int]) -> int:
    """Who decides about the window's stripe."""
    return members[(window.file + window.stripe) % len(members)]


def divide(
    wanted: Mapping[tuple[int, ...], Sequence[Window]], reach: Reach, *, turn: int = 0
) -> list[SharedRead]:
    """Every wanted byte in one read each, by file and place, balanced by bytes among its readers.

    `wanted` is by ranks that want the same. `turn` says who begins, so that brokers differ.
    """
    loads = _Loads(turn)
    found: list[SharedRead] = []
    for window, takers in _distinct(wanted):
        reader = loads.take(reach.readers(window.file, takers), window.nbytes)
        found.append(SharedRead(window, reader, takers))
    return found


def _distinct(
    wanted: Mapping[tuple[int, ...], Sequence[Window]],
) -> Iterator[tuple[Window, tuple[int, ...]]]:
    """Windows that do not overlap, each with all who want it."""
    everything = sorted((w, ranks) for ranks, windows in wanted.items() for w in windows)
    for _, group in groupby(everything, key=lambda one: one[0][:2]):
        yield from _within(list(group))


def _within(
    group: Sequence[tuple[Window, tuple[int, ...]]],
) -> Iterator[tuple[Window, tuple[int, ...]]]:
    """The same for the windows of one stripe."""
    if len(group) == 1:
        yield group[0]
        return
    borders = sorted({border for window, _ in group for border in window[2:]})
    last: tuple[Window, tuple[int, ...]] | None = None
    for start, stop in pairwise(borders):
        ranks = {r for w, ranks in group if w.start <= start and stop <= w.stop for r in ranks}
        takers = tuple(sorted(ranks))
        if last is not None and takers == last[1] and last[0].stop == start:
            last = last[0]._replace(stop=stop), takers
            continue
        if last is not None:
            yield last
        last = (group[0][0]._replace(start=start, stop=stop), takers) if takers else None
    if last is not None:
        yield last


class _Loads:
    """How much each rank reads so far."""

    def __init__(self, turn: int) -> None:
        self._turn = turn
        self._nbytes: dict[int, int] = {}

    def take(self, ranks: Sequence[int], nbytes: int) -> int:
        """The one of `ranks` that has the least to read; of equals, the next in turn."""
        shift = self._turn % len(ranks)
        chosen = min((*ranks[shift:], *ranks[:shift]), key=lambda rank: self._nbytes.get(rank, 0))
        self._nbytes[chosen] = self._nbytes.get(chosen, 0) + nbytes
        return chosen

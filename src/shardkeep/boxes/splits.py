"""Where does a dim break when it is divided into parts?

All rules here are those of `torch.chunk`: parts of ceil(n / parts) cells, the last ones
shorter or empty. Empty parts sit at n, as DTensor puts them, never past it.

Strided placements give a rank several pieces of one dim. `Runs` lists them in the order in
which the rank's local tensor holds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from shardkeep.errors import InvalidError

Span = tuple[int, int]
"""Start and stop of a piece of one dim."""

Runs = tuple[Span, ...]
"""Disjoint pieces of one dim in local order; none is empty, and none continues the last."""


def ceil_split(n: int, parts: int) -> tuple[Span, ...]:
    """The (start, stop) of each of exactly `parts` chunks of `n` cells.

    >>> ceil_split(5, 4)
    ((0, 2), (2, 4), (4, 5), (5, 5))
    """
    _require_split(n, parts)
    return tuple([_chunk(0, n, parts, index) for index in range(parts)])


def nested_split(n: int, counts: Sequence[int]) -> tuple[Span, ...]:
    """The spans left when `n` cells are split by counts[0], each piece by counts[1], and so on.

    >>> nested_split(8, [2, 2])
    ((0, 2), (2, 4), (4, 6), (6, 8))
    """
    _require_split(n, 1)
    spans: list[Span] = [(0, n)]
    for parts in counts:
        _require_split(n, parts)
        spans = [_chunk(a, b, parts, index) for a, b in spans for index in range(parts)]
    return tuple(spans)


def chunk_runs(runs: Sequence[Span], parts: int, index: int) -> Runs:
    """The index-th of `parts` chunks of the cells of `runs`, laid end to end.

    >>> chunk_runs([(0, 4), (8, 12)], 2, 0), chunk_runs([(0, 4), (8, 12)], 3, 1)
    (((0, 4),), ((3, 4), (8, 10)))
    """
    return interleaved_chunk_runs(runs, parts, index, 1)


def interleaved_chunk_runs(runs: Sequence[Span], parts: int, index: int, factor: int) -> Runs:
    """What DTensor's `_StridedShard(dim, split_factor=factor)` gives one mesh coordinate.

    The cells of `runs` are chunked into `factor` pieces, each piece into `parts`; coordinate
    `index` of the axis holds the index-th chunk of every piece, end to end.

    >>> interleaved_chunk_runs([(0, 8)], 2, 1, 2)
    ((2, 4), (6, 8))
    """
    n = sum([b - a for a, b in runs])
    _require_split(n, parts)
    _require_split(n, factor)
    if not 0 <= index < parts:
        raise InvalidError(f"index {index} is not one of {parts} parts")
    pieces = (_chunk(0, n, factor, piece) for piece in range(factor))
    return _merged(_select(runs, [_chunk(a, b, parts, index) for a, b in pieces]))


def _chunk(start: int, stop: int, parts: int, index: int) -> Span:
    size = -(-(stop - start) // parts)
    return min(stop, start + size * index), min(stop, start + size * (index + 1))


def _select(runs: Sequence[Span], positions: Iterable[Span]) -> Iterator[Span]:
    """The pieces of `runs` at ascending `positions`, which count cells from the first run on."""
    todo = iter(runs)
    start, stop, offset = 0, 0, 0  # The current run; `offset` cells came before it.
    for first, last in positions:
        while first < last:
            while first >= offset + stop - start:
                offset += stop - start
                start, stop = next(todo)
            taken = min(last, offset + stop - start)
            yield start + first - offset, start + taken - offset
            first = taken


def _merged(spans: Iterable[Span]) -> Runs:
    runs: list[Span] = []
    for start, stop in spans:
        if runs and runs[-1][1] == start:
            runs[-1] = (runs[-1][0], stop)
        else:
            runs.append((start, stop))
    return tuple(runs)


def _require_split(n: int, parts: int) -> None:
    if n < 0:
        raise InvalidError(f"cannot split {n} cells; expected 0 or more")
    if parts < 1:
        raise InvalidError(f"cannot split into {parts} parts; expected 1 or more")

"""Which pieces of a split dim does a span meet?

Answered by division alone: a dim that is split 16,384 times costs no more than one split twice.
`boxes.nested_split` writes the same pieces out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

Piece = tuple[int, int, int]
"""Number of the piece among all pieces of the dim, start, stop."""


def pieces_meeting(n: int, counts: Sequence[int], start: int, stop: int) -> Iterator[Piece]:
    """The non-empty pieces that share cells with `start:stop`, in order.

    `n` cells are split by counts[0], each piece by counts[1], and so on.

    >>> list(pieces_meeting(10, [2, 2], 4, 6))
    [(1, 3, 5), (2, 5, 8)]
    """
    if max(start, 0) < min(stop, n):
        yield from _within((0, 0, n), counts, start, stop)


def pieces(n: int, counts: Sequence[int]) -> Iterator[Piece]:
    """All non-empty pieces, in order.

    >>> list(pieces(5, [4]))
    [(0, 0, 2), (1, 2, 4), (2, 4, 5)]
    """
    return pieces_meeting(n, counts, 0, n)


def _within(piece: Piece, counts: Sequence[int], start: int, stop: int) -> Iterator[Piece]:
    if not counts:
        yield piece
        return
    number, low, high = piece
    size = -(-(high - low) // counts[0])
    first, last = (max(start, low) - low) // size, (min(stop, high) - 1 - low) // size
    for index in range(first, last + 1):
        at = low + index * size
        inner = number * counts[0] + index, at, min(high, at + size)
        yield from _within(inner, counts[1:], start, stop)

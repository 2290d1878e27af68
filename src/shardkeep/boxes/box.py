"""Which cells of a tensor are meant?

A `Box` answers with one half-open rectangle of integer coordinates. Everything that
shardkeep plans (who holds, writes, reads or sends what) is said in boxes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import add, eq, ge, index, le, neg, sub
from typing import SupportsIndex

from shardkeep.errors import InvalidError

# Below, `(*map(...),)` stands for `tuple(map(...))`: that one first makes a longer tuple, and each
# that dies would stay in the interpreter's list of free ones, up to 2,000 of a length.

# Torch's sizes are int64, and the bulk code keeps coordinates in int64 arrays.
_LIMIT = 2**63

_NUMBER = r"(?:0|[1-9][0-9]{0,18})"
_SPAN = rf"{_NUMBER}:{_NUMBER}"
_TEXT = re.compile(rf"\[(?:{_SPAN}(?:, ?{_SPAN})*)?\]")


@dataclass(frozen=True, slots=True, order=True)
class Box:
    """A half-open rectangle of integer coordinates: `start[d] <= i < stop[d]`.

    A box with an empty side is empty: it has a place but no cell. A 0-dim box has one cell.
    Any integers are accepted, plain ones below 2**63 are kept. Boxes sort by start, then stop.

    >>> box = Box((0, 4), (2, 8))
    >>> box.shape, box.numel
    ((2, 4), 8)
    >>> print(box)
    [0:2, 4:8]
    >>> box.intersect(Box((1, 0), (5, 5)))
    Box(start=(1, 4), stop=(2, 5))
    """

    start: tuple[int, ...]
    stop: tuple[int, ...]

    def __post_init__(self) -> None:
        # Boxes are made by the 100,000s: the valid case is one loop, the rest is out of line.
        start, stop = self.start, self.stop
        if type(start) is tuple and type(stop) is tuple and len(start) == len(stop):
            for a, b in zip(start, stop, strict=False):
                if type(a) is not int or type(b) is not int or not 0 <= a <= b < _LIMIT:
                    break
            else:
                return
        self._normalise()

    def _normalise(self) -> None:
        """Turn other integers and sequences into plain ones, or say what is wrong."""
        start, stop = _plain(self.start), _plain(self.stop)
        if len(start) != len(stop):
            raise InvalidError(f"a box needs as many starts as stops, got {start} and {stop}")
        for dim, (a, b) in enumerate(zip(start, stop, strict=True)):
            if not 0 <= a <= b < _LIMIT:
                raise InvalidError(
                    f"a box needs 0 <= start <= stop < 2**63, got {a}:{b} in dim {dim}"
                )
        object.__setattr__(self, "start", start)
        object.__setattr__(self, "stop", stop)

    @classmethod
    def whole(cls, shape: Sequence[int]) -> Box:
        """The box of all cells of a tensor of this shape."""
        return cls((0,) * len(shape), tuple(shape))

    @classmethod
    def sized(cls, start: Sequence[int], shape: Sequence[int]) -> Box:
        """The box of this shape whose first cell is `start`."""
        _require_same_ndim(start, shape)
        return cls(tuple(start), (*map(add, start, shape),))

    @classmethod
    def parse(cls, text: str) -> Box:
        """The box that `str(box)` wrote; the space after a comma may be missing.

        >>> Box.parse("[0:2,4:8]")
        Box(start=(0, 4), stop=(2, 8))
        """
        if not _TEXT.fullmatch(text):
            raise InvalidError(f"not a box: {text[:80]!r}; expected text like '[0:128, 0:4096]'")
        spans = [span.split(":") for span in text[1:-1].split(",")] if text != "[]" else []
        return cls(tuple(int(a) for a, _ in spans), tuple(int(b) for _, b in spans))

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each side."""
        return (*map(sub, self.stop, self.start),)

    @property
    def ndim(self) -> int:
        """How many dims it has."""
        return len(self.start)

    @property
    def numel(self) -> int:
        """How many cells it has."""
        return math.prod(self.shape)

    @property
    def is_empty(self) -> bool:
        """Whether it has no cell."""
        return any(map(eq, self.start, self.stop))

    def intersect(self, other: Box) -> Box | None:
        """The shared cells, or None if there is none; an empty box shares nothing."""
        _require_same_ndim(self.start, other.start)
        start = (*map(max, self.start, other.start),)
        stop = (*map(min, self.stop, other.stop),)
        for a, b in zip(start, stop, strict=True):
            if a >= b:
                return None
        return trusted_box(start, stop)

    def overlaps(self, other: Box) -> bool:
        """Whether at least one cell is shared; an empty box overlaps nothing."""
        return self.intersect(other) is not None

    def contains(self, other: Box) -> bool:
        """Whether `other` lies within; an empty box must lie within by its place, too."""
        _require_same_ndim(self.start, other.start)
        return all(map(le, self.start, other.start)) and all(map(ge, self.stop, other.stop))

    def shifted(self, by: Sequence[int]) -> Box:
        """The same box moved by an offset per dim, which must not take it below 0."""
        _require_same_ndim(self.start, by)
        if not any(by):
            return self
        return Box((*map(add, self.start, by),), (*map(add, self.stop, by),))

    def relative_to(self, origin: Sequence[int]) -> Box:
        """The same box counted from `origin`: a global box becomes local to a shard.

        >>> Box((4, 4), (6, 8)).relative_to((4, 0))
        Box(start=(0, 4), stop=(2, 8))
        """
        return self.shifted((*map(neg, origin),))

    def slices(self) -> tuple[slice, ...]:
        """What to index an array with to get this box of it."""
        return (*map(slice, self.start, self.stop),)

    def __str__(self) -> str:
        spans = [f"{a}:{b}" for a, b in zip(self.start, self.stop, strict=True)]
        return f"[{', '.join(spans)}]"


_set_start: Callable[[Box, tuple[int, ...]], None] = vars(Box)["start"].__set__
_set_stop: Callable[[Box, tuple[int, ...]], None] = vars(Box)["stop"].__set__


def trusted_box(start: tuple[int, ...], stop: tuple[int, ...]) -> Box:
    """A Box without the checks, four times as fast: only for numbers that came from boxes."""
    box = object.__new__(Box)
    _set_start(box, start)
    _set_stop(box, stop)
    return box


def _plain(numbers: Sequence[SupportsIndex]) -> tuple[int, ...]:
    try:
        return tuple([int(index(number)) for number in numbers])
    except TypeError:
        raise InvalidError(f"a box needs integer coordinates, got {numbers!r}") from None


def _require_same_ndim(one: Sequence[int], other: Sequence[int]) -> None:
    if len(one) != len(other):
        raise InvalidError(
            f"dims differ: {tuple(one)} has {len(one)}, {tuple(other)} has {len(other)}"
        )

"""How is a long, regular sequence of integers written in a few?

As runs `[first, step, count]`. Which files hold the 16,384 chunks of a tensor is mostly one run.
A run takes as many numbers as it can, so that a sequence has one spelling. Numbers are looked
up in the runs: what is written in a line takes the memory of a line, whatever its length.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, pairwise, repeat
from typing import cast, overload

from shardkeep.errors import CorruptError
from shardkeep.manifest.limits import MAX_INT
from shardkeep.manifest.plain_json import shown

Run = tuple[int, int, int]
"""First number, step, count."""


@dataclass(frozen=True)
class Runs(Sequence[int]):
    """The numbers that runs stand for.

    >>> numbers = Runs.of([0, 1, 2, 3, 9, 9])
    >>> numbers.runs, numbers[2], len(numbers)
    (((0, 1, 4), (9, 0, 2)), 2, 6)
    """

    runs: tuple[Run, ...]

    @classmethod
    def of(cls, numbers: Sequence[int]) -> Runs:
        """The runs of any sequence; of runs themselves, at no cost."""
        if isinstance(numbers, Runs):
            return numbers
        return cls(tuple([(first, step, count) for first, step, count in encode_runs(numbers)]))

    @cached_property
    def _stops(self) -> list[int]:
        """The place behind each run."""
        return list(accumulate([count for _, _, count in self.runs]))

    @cached_property
    def bounds(self) -> tuple[int, int]:
        """The least and the greatest number; (0, 0) if there is none."""
        ends = [(first, first + step * (count - 1)) for first, step, count in self.runs]
        return min(map(min, ends), default=0), max(map(max, ends), default=0)

    def __len__(self) -> int:
        return self._stops[-1] if self.runs else 0

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(f"place {index} is not one of {len(self)}")
        number = bisect_right(self._stops, place)
        first, step, count = self.runs[number]
        return first + step * (place - self._stops[number] + count)

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(map(_numbers, self.runs))


def _numbers(run: Run) -> Iterator[int]:
    first, step, count = run
    return iter(range(first, first + step * count, step)) if step else repeat(first, count)


def encode_runs(numbers: Sequence[int]) -> list[list[int]]:
    """The numbers as runs.

    >>> encode_runs([0, 1, 2, 3, 9, 9]), encode_runs([5])
    ([[0, 1, 4], [9, 0, 2]], [[5, 0, 1]])
    """
    if isinstance(numbers, Runs):
        return [list(run) for run in numbers.runs]
    runs: list[list[int]] = []
    start, total = 0, len(numbers)
    while start < total:
        step = numbers[start + 1] - numbers[start] if start + 1 < total else 0
        stop = _run_stop(numbers, start, step)
        runs.append([numbers[start], step, stop - start])
        start = stop
    return runs


def _run_stop(numbers: Sequence[int], start: int, step: int) -> int:
    total, expected, stop = len(numbers), numbers[start] + step, start + 1
    while stop < total and numbers[stop] == expected:
        expected += step
        stop += 1
    return stop


def decode_runs(data: object, *, limit: int) -> Runs:
    """The numbers of `data`, at most `limit` of them, each from 0 to 2**63 - 1.

    Nothing is expanded: a count of 2**60 is refused, or costs no more than a count of 2.
    """
    if not isinstance(data, list | tuple):
        raise CorruptError(f"runs are a list, found {type(data).__name__}")
    runs = tuple(map(_checked, cast("Sequence[object]", data)))
    total = sum([count for _, _, count in runs])
    if total > limit:
        raise CorruptError(f"runs of {shown(total)} numbers; expected at most {limit}")
    _require_greedy(runs)
    return Runs(runs)


def _checked(data: object) -> Run:
    run = cast("Sequence[object]", data) if isinstance(data, list | tuple) else ()
    if len(run) != 3 or not type(run[0]) is type(run[1]) is type(run[2]) is int:
        raise CorruptError(f"a run is [first, step, count], found {shown(run)}")
    first, step, count = cast("Run", run)
    if count >= 1 and 0 <= first <= MAX_INT and 0 <= first + step * (count - 1) <= MAX_INT:
        return first, step, count
    raise CorruptError(
        f"the run of {shown(count)} numbers from {shown(first)} by {shown(step)} is empty, or "
        "leaves the range from 0 to 2**63 - 1"
    )


def _require_greedy(runs: Sequence[Run]) -> None:
    """Raise unless each run takes as many numbers as it can."""
    for (first, step, count), (following, _, _) in pairwise(runs):
        # Any two numbers make a run, so that only the last one may be alone.
        if count == 1 or first + step * count == following:
            raise CorruptError(f"the run from {first} does not take {following}, which follows")
    if runs and runs[-1][2] == 1 and runs[-1][1] != 0:
        raise CorruptError(f"the run of {runs[-1][0]} alone has a step; expected 0")

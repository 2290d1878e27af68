"""Which bytes of a storage do its tensors use, and where do these lie in a compact copy?

Integers only. Tensors that overlap keep their relative places, so that views and ties can be
rebuilt on the copy; what lies between them and is used by none is left out.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """The half-open range of a storage's bytes from a tensor's first element to its last."""

    start: int
    stop: int
    itemsize: int


@dataclass(frozen=True, slots=True)
class Run:
    """Bytes copied in one piece, from `start` in the storage to `target_start` in the buffer."""

    start: int
    nbytes: int
    target_start: int


@dataclass(frozen=True, slots=True)
class CompactCopy:
    """The runs of one storage, by start, and the size of the buffer that they fill.

    >>> plan_copy([Span(8, 16, 4), Span(12, 20, 4), Span(100, 104, 4)])
    CompactCopy(nbytes=16, runs=(Run(start=8, nbytes=12, target_start=0), \
Run(start=100, nbytes=4, target_start=12)))
    """

    nbytes: int
    runs: tuple[Run, ...]

    def target_of(self, start: int) -> int:
        """Where in the buffer the used byte `start` of the storage lies."""
        run = self.runs[bisect_right(self.runs, start, key=lambda run: run.start) - 1]
        return run.target_start + start - run.start


def span_of(offset: int, shape: Sequence[int], strides: Sequence[int], itemsize: int) -> Span:
    """The span of a tensor with at least one element; offset and strides count elements.

    >>> span_of(2, (3, 2), (10, 1), 4)
    Span(start=8, stop=96, itemsize=4)
    """
    last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    return Span(offset * itemsize, (last + 1) * itemsize, itemsize)


def has_distinct_places(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether each element surely has memory of its own: False also where it is hard to tell.

    >>> has_distinct_places((2, 3), (3, 1)), has_distinct_places((2, 3), (0, 1))
    (True, False)
    """
    reach = 0
    for stride, n in sorted(zip(strides, shape, strict=True)):
        if n > 1 and stride <= reach:
            return False
        reach += (n - 1) * stride
    return True


def plan_copy(spans: Iterable[Span]) -> CompactCopy:
    """The copy that holds these spans of one storage: overlapping and touching ones in one run."""
    runs: list[Run] = []
    nbytes = 0
    for span in _joined(spans):
        # Each tensor in the run keeps its alignment: sizes of elements are powers of two.
        target_start = nbytes + (span.start - nbytes) % span.itemsize
        runs.append(Run(span.start, span.stop - span.start, target_start))
        nbytes = target_start + span.stop - span.start
    return CompactCopy(nbytes, tuple(runs))


def _joined(spans: Iterable[Span]) -> list[Span]:
    """Disjoint spans by start, each with the largest item size of those that it joins."""
    joined: list[Span] = []
    for span in sorted(spans):
        if joined and span.start <= joined[-1].stop:
            last = joined.pop()
            stop, itemsize = max(last.stop, span.stop), max(last.itemsize, span.itemsize)
            span = Span(last.start, stop, itemsize)
        joined.append(span)
    return joined


def find_loose(spans: Sequence[Span], used_nbytes: Sequence[int]) -> list[int]:
    """Which spans meet no other and are less than half used, like one column of a matrix.

    A copy of such a span would be mostly bytes that nobody asked for.

    >>> find_loose([Span(0, 400, 4), Span(400, 800, 4), Span(404, 412, 4)], [40, 40, 8])
    [0]
    """
    order = sorted(range(len(spans)), key=lambda index: spans[index])
    loose: list[int] = []
    reach = 0
    for index, following in zip_longest(order, order[1:]):
        span = spans[index]
        alone = reach <= span.start and (following is None or span.stop <= spans[following].start)
        if alone and 2 * used_nbytes[index] < span.stop - span.start:
            loose.append(index)
        reach = max(reach, span.stop)
    return loose

"""How are many runs of bytes fetched from a distance, where each request has its price?

Runs that lie close together are fetched by one request, gaps included; what is long is cut, so that
several requests share it. Cuts fall between blocks: no block is fetched twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardkeep.plan.reads import DirectRead, Part, SpanRead


def plan_spans(
    reads: Sequence[DirectRead],
    *,
    data_start: int,
    file_nbytes: int,
    block_nbytes: int,
    span_nbytes: int,
    max_gap_nbytes: int,
) -> list[SpanRead]:
    """Spans of whole blocks, each about `span_nbytes` at most, that hold all reads.

    >>> reads = [DirectRead(0, 10, 30), DirectRead(1, 30, 95)]
    >>> for span in plan_spans(
    ...     reads, data_start=10, file_nbytes=100, block_nbytes=20, span_nbytes=40, max_gap_nbytes=0
    ... ):
    ...     print(span.start, span.stop, [(p.target, p.start, p.stop, p.at) for p in span.parts])
    10 50 [(0, 10, 30, 0), (1, 30, 50, 0)]
    50 90 [(1, 50, 90, 20)]
    90 100 [(1, 90, 95, 60)]
    """
    span_nbytes = max(block_nbytes, span_nbytes - span_nbytes % block_nbytes)
    spans: list[SpanRead] = []
    for start, stop, group in _runs(reads, data_start, file_nbytes, block_nbytes, max_gap_nbytes):
        first = 0
        for at in range(start, stop, span_nbytes):
            end = min(at + span_nbytes, stop)
            while group[first].stop <= at:
                first += 1
            parts = tuple(_parts(group, first, at, end))
            if parts:
                spans.append(SpanRead(at, end, parts))
    return spans


def _runs(
    reads: Sequence[DirectRead], data_start: int, file_nbytes: int, block_nbytes: int, max_gap: int
) -> Iterator[tuple[int, int, list[DirectRead]]]:
    """Whole blocks that follow each other, or nearly, with the reads in them by where they end."""
    group: list[DirectRead] = []
    start = stop = 0
    for read in sorted(reads, key=lambda one: (one.start, one.stop)):
        first = read.start - (read.start - data_start) % block_nbytes
        last = min(read.stop + (data_start - read.stop) % block_nbytes, file_nbytes)
        if group and first - stop > max_gap:
            yield start, stop, group
            group = []
        if not group:
            start, stop = first, last
        group.append(read)
        stop = max(stop, last)
    if group:
        yield start, stop, group


def _parts(group: Sequence[DirectRead], first: int, start: int, stop: int) -> Iterator[Part]:
    """What of the reads, from the `first` on, lies in a span."""
    for index in range(first, len(group)):
        read = group[index]
        if read.start >= stop:
            return
        begin, end = max(read.start, start), min(read.stop, stop)
        if begin < end:
            yield Part(read.target, begin, end, begin - read.start)

"""What are the values of a tensor like, and what does a slice of it look like?"""

# NumPy leaves views and reductions untyped.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardkeep.boxes import Box
from shardkeep.errors import InvalidError
from shardkeep.manifest import TensorRecord
from shardkeep.transfer.opened import Opened
from shardkeep.view.values import Stats
from shardkeep.view.web.histograms import Odd, as_floats, histogram_of, over_boxes, stats_of
from shardkeep.view.web.run_page import finite
from shardkeep.view.web.sampling import sample_of

SAMPLE_NBYTES = 64 * 2**20
_MOST_ODD_BOXES = 50
_MOST_CELLS = 20
_READ_CELLS = 2**24
_STRIP_CELLS = 2**20
_WIDEST = 2**22


def values_page(opened: Opened, key: str, *, whole: bool) -> dict[str, Any]:
    """Statistics, a histogram, and where values are not finite."""
    record = opened.manifest.tensor(key)
    sample = sample_of(opened, record, most_nbytes=None if whole else SAMPLE_NBYTES)
    stats, odd = stats_of(opened, record, sample.boxes)
    return {
        "stats": stats_fields(stats),
        "bins": histogram_of(opened, record, sample.boxes, stats.least, stats.most),
        "odd": _odd_fields(odd),
        "read_nbytes": sample.nbytes,
        "is_whole": sample.is_whole,
    }


def stats_fields(stats: Stats) -> dict[str, Any]:
    """The statistics; without finite values there is nothing but counts."""
    numbers = {
        "min": stats.least,
        "max": stats.most,
        "mean": stats.mean,
        "std": stats.deviation,
    }
    return {
        "count": stats.count,
        "nan": stats.nans,
        "inf": stats.infs,
        **{name: finite(one) if stats.finite else None for name, one in numbers.items()},
    }


def _odd_fields(odd: Odd) -> dict[str, Any]:
    cells = [cell for _, _, found in odd for cell in found]
    return {
        "boxes": [
            {"start": box.start, "stop": box.stop, "nan": stats.nans, "inf": stats.infs}
            for box, stats, _ in odd[:_MOST_ODD_BOXES]
        ],
        "box_count": len(odd),
        "cells": cells[:_MOST_CELLS],
    }


@dataclass(frozen=True, slots=True)
class _Axis:
    """Indices of a dim that are shown: from `start`, each `step`-th, so many."""

    start: int
    step: int
    count: int

    @property
    def stop(self) -> int:
        return self.start + self.step * (self.count - 1) + 1


def slice_page(opened: Opened, key: str, asked: Mapping[str, str], *, most: int) -> dict[str, Any]:
    """Cells of two dims at an index of the others; of more than `most` along a dim each n-th."""
    record = opened.manifest.tensor(key)
    shape = record.shape or (1,)
    if 0 in shape:
        raise InvalidError(f"{key!r} has no cells to show")
    row_dim, column_dim = _dims(asked, len(shape))
    index = _index(asked.get("index", ""), shape)
    columns = _axis(asked.get("columns", ""), shape[column_dim], most, _WIDEST)
    # A row is read as a whole, whatever is shown of it.
    at_most = min(most, max(1, _READ_CELLS // (columns.stop - columns.start)))
    height = 1 if row_dim is None else shape[row_dim]
    rows = _axis(asked.get("rows", ""), height, at_most, height)
    boxes = _strips(index, row_dim, column_dim, rows, columns)
    found = over_boxes(opened, record, _fitting(record, boxes), _taker(record, columns))
    cells = np.concatenate(found)[: rows.count * columns.count].astype(np.float32)
    return {
        "row_dim": row_dim,
        "column_dim": column_dim,
        "index": index,
        "rows": [rows.start, rows.step, rows.count],
        "columns": [columns.start, columns.step, columns.count],
        "cells": base64.b64encode(cells.astype("<f4").tobytes()).decode(),
    }


def _dims(asked: Mapping[str, str], ndim: int) -> tuple[int | None, int]:
    """The dims that go down and across; the last two unless others are asked for."""
    if ndim == 1:
        return None, 0
    row, column = (
        _number(asked.get(name, ""), ndim, default)
        for name, default in (("row_dim", ndim - 2), ("column_dim", ndim - 1))
    )
    if row == column:
        raise InvalidError(f"a slice has two different dims, got {row} twice")
    return min(row, column), max(row, column)


def _number(text: str, below: int, default: int) -> int:
    if not text:
        return default
    if not text.isascii() or not text.isdecimal() or len(text) > 18 or int(text) >= below:
        raise InvalidError(f"expected a number from 0 to {below - 1}, got {text[:40]!r}")
    return int(text)


def _index(text: str, shape: Sequence[int]) -> list[int]:
    """The index of each dim, as in `0,3,0,0`; those that are shown are not looked at."""
    parts = text.split(",") if text else []
    if len(parts) > len(shape):
        raise InvalidError(f"{len(parts)} indices for {len(shape)} dims")
    parts += [""] * (len(shape) - len(parts))
    return [_number(part, side, 0) for part, side in zip(parts, shape, strict=True)]


def _axis(text: str, side: int, most: int, widest: int) -> _Axis:
    """The indices of a range such as `128:256`, at most `widest`, every n-th if they are many."""
    start, _, stop = text.partition(":")
    first, last = _number(start, side, 0), _number(stop, side + 1, side)
    if first >= last:
        raise InvalidError(f"a range is as in 0:{side}, got {text[:40]!r}")
    last = min(last, first + widest)
    step = -(-(last - first) // most)
    return _Axis(first, step, -(-(last - first) // step))


def _strips(
    index: Sequence[int], row_dim: int | None, column_dim: int, rows: _Axis, columns: _Axis
) -> list[Box]:
    """A box for each row that is shown; rows next to each other are one box."""
    firsts = [rows.start + n * rows.step for n in range(rows.count)]
    lasts = [first + 1 for first in firsts]
    if rows.step == 1:
        at_once = max(1, _STRIP_CELLS // (columns.stop - columns.start))
        firsts = firsts[::at_once]
        lasts = [*firsts[1:], rows.start + rows.count]
    boxes: list[Box] = []
    for first, last in zip(firsts, lasts, strict=True):
        start, stop = list(index), [at + 1 for at in index]
        start[column_dim], stop[column_dim] = columns.start, columns.stop
        if row_dim is not None:
            start[row_dim], stop[row_dim] = first, last
        boxes.append(Box(tuple(start), tuple(stop)))
    return boxes


def _fitting(record: TensorRecord, boxes: Sequence[Box]) -> list[Box]:
    return list(boxes) if record.shape else [Box((), ())]


def _taker(record: TensorRecord, columns: _Axis) -> Any:
    """Of a strip, the columns that are shown, flat."""
    width = columns.stop - columns.start

    def take(box: Box, bits: Any) -> Any:
        return as_floats(bits, record.dtype).reshape(-1, width)[:, :: columns.step].reshape(-1)

    return take

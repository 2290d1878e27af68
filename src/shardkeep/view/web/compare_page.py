"""What changed between two checkpoints, and how has a tensor drifted over a run?"""

# NumPy leaves views and reductions untyped.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from shardkeep.errors import InvalidError, ShardkeepError
from shardkeep.manifest import TensorRecord
from shardkeep.transfer.opened import Opened
from shardkeep.transfer.read import Array
from shardkeep.transfer.steps import StepRecord, current, read_steps
from shardkeep.transfer.team import Team
from shardkeep.view.comparing import difference
from shardkeep.view.values import Stats
from shardkeep.view.web.histograms import as_floats, histogram_of, over_boxes, stats_of
from shardkeep.view.web.library import Library
from shardkeep.view.web.run_page import finite
from shardkeep.view.web.sampling import Sample, sample_of
from shardkeep.view.web.values_page import SAMPLE_NBYTES, stats_fields

_DRIFT_NBYTES = 8 * 2**20
_MOST_STEPS = 100


def compare_page(a: Opened, b: Opened, pattern: str | None) -> dict[str, Any]:
    """Which tensors differ and by how much, the largest change first; reads both."""
    found = difference(a, b, pattern, Team(quiet=True))
    if found is None:
        raise InvalidError("a comparison is made by one process")
    return {
        "only_a": found.only_a,
        "only_b": found.only_b,
        "other_kind": found.other_kind,
        "equal": found.equal,
        "keys": [one.key for one in found.changes],
        "changed": [one.changed for one in found.changes],
        "count": [one.count for one in found.changes],
        "most": [finite(one.most) for one in found.changes],
        "relative": [finite(one.most_relative) for one in found.changes],
    }


def spread_page(a: Opened, b: Opened, key: str) -> dict[str, Any]:
    """The distributions of a tensor's values in both, over one range."""
    sides = [(one, one.manifest.tensor(key)) for one in (a, b)]
    samples = [sample_of(one, record, most_nbytes=SAMPLE_NBYTES) for one, record in sides]
    stats = [
        stats_of(one, record, sample.boxes)[0]
        for (one, record), sample in zip(sides, samples, strict=True)
    ]
    least, most = min(one.least for one in stats), max(one.most for one in stats)
    return {
        "key": key,
        "least": finite(least),
        "most": finite(most),
        "stats": [stats_fields(one) for one in stats],
        "bins": [
            histogram_of(one, record, sample.boxes, least, most)
            for (one, record), sample in zip(sides, samples, strict=True)
        ],
        "is_whole": all(sample.is_whole for sample in samples),
    }


def drift_page(library: Library, run: str, key: str) -> dict[str, Any]:
    """A tensor in all checkpoints of a run: its values, and how far they are from the first."""
    place = library.run(run)
    records = current(read_steps(library.shelf(place)))
    steps = _spread([one for one in records if one.condition == "committed"])
    trail = _Trail(key)
    for one in steps:
        try:
            with library.checkpoint(f"{run}/{one.name}") as opened:
                trail.add(one.step, opened)
        except ShardkeepError as error:
            trail.left_out.append(f"step {one.step}: {error}")
    return {"key": key, "steps": trail.rows, "left_out": trail.left_out, "sampled": trail.sampled}


def _spread(records: Sequence[StepRecord]) -> list[StepRecord]:
    if len(records) <= _MOST_STEPS:
        return list(records)
    last = len(records) - 1
    return [records[at * last // (_MOST_STEPS - 1)] for at in range(_MOST_STEPS)]


class _Trail:
    """Takes checkpoints in their order; all are read at the same cells."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._kind: tuple[int, ...] | None = None
        self._sample: Sample | None = None
        self._first: Array | None = None
        self._last: Array | None = None
        self.rows: list[dict[str, Any]] = []
        self.left_out: list[str] = []

    @property
    def sampled(self) -> bool:
        return self._sample is not None and not self._sample.is_whole

    def add(self, step: int, opened: Opened) -> None:
        record = opened.manifest.tensor(self._key)
        if self._sample is None or self._kind is None:
            self._sample = sample_of(opened, record, most_nbytes=_DRIFT_NBYTES)
            self._kind = record.shape
        if record.shape != self._kind:
            self.left_out.append(f"step {step}: shape {list(record.shape)}")
            return
        stats, values = _read(opened, record, self._sample)
        self.rows.append(
            {
                "step": step,
                **stats_fields(stats),
                "from_first": _distance(values, self._first),
                "from_last": _distance(values, self._last),
            }
        )
        self._first = values if self._first is None else self._first
        self._last = values


def _read(opened: Opened, record: TensorRecord, sample: Sample) -> tuple[Stats, Array]:
    parts = over_boxes(opened, record, sample.boxes, lambda _, bits: as_floats(bits, record.dtype))
    values = np.concatenate(parts) if parts else np.empty(0)
    stats = Stats()
    stats.add(values.view(np.uint64), "F64")
    return stats, values


def _distance(values: Array, before: Array | None) -> float | str:
    """The norm of the change of finite values for each unit of their norm before."""
    if before is None:
        return 0.0
    # One bad cell must not hide how far the others have gone.
    known = np.isfinite(values) & np.isfinite(before)
    norm = float(np.linalg.norm(before[known]))
    apart = float(np.linalg.norm(values[known] - before[known]))
    if not norm:
        return 0.0 if not apart else finite(math.inf)
    return finite(apart / norm)

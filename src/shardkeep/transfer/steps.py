"""Which checkpoints has a run, and in which condition? Torch-free: tools list runs with it."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

from shardkeep.errors import (
    CorruptError,
    InvalidError,
    NotFoundError,
    ShardkeepError,
    StorageError,
    VersionError,
)
from shardkeep.manifest import MANIFEST_NAME, Summary, decode_summary
from shardkeep.manifest.limits import MAX_MANIFEST_NBYTES
from shardkeep.storage.protocols import Storage
from shardkeep.storage.shelf import Shelf

if TYPE_CHECKING:
    from shardkeep.plan.retention import Retention, SavedStep

_NAME = re.compile(r"step-(\d{8,18})")
_END = 10**18
# Under this key of a checkpoint's metadata stands what the run says of it.
RUN_KEY = "run"

Condition = Literal["committed", "half-written", "damaged", "unknown"]


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One checkpoint of a run.

    `half-written`: a save was broken off, or is still under way. `damaged`: it was committed, but
    its manifest cannot be read, or a file is missing or has another size; `problem` says which.
    `unknown`: a newer shardkeep wrote it.
    """

    step: int
    name: str
    condition: Condition
    problem: str = ""
    save_id: str = ""
    nbytes: int = 0
    world: int = 0
    saved_at: float = 0.0
    """Seconds since 1970."""
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    left_behind: Mapping[int, str] = field(default_factory=dict[int, str])
    """Newer steps, with their save ids, of the attempt that its run went back on."""
    keep: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What its run kept at that time, as `Retention.as_json` says it."""

    @property
    def as_saved(self) -> SavedStep:
        from shardkeep.plan.retention import SavedStep

        return SavedStep(self.step, self.metrics)


def step_name(step: int) -> str:
    """The name of a step's folder.

    >>> step_name(1200)
    'step-00001200'
    """
    if not 0 <= step < _END:
        raise InvalidError(f"a step is a number from 0 to {_END - 1}, got {step}")
    return f"step-{step:08d}"


def parse_step(name: str) -> int | None:
    """The step that a folder is of; None for any other folder.

    >>> parse_step("step-00001200"), parse_step("logs"), parse_step("step-000000012")
    (1200, None, None)
    """
    found = _NAME.fullmatch(name)
    step = int(found[1]) if found else -1
    return step if found and step_name(step) == name else None


def read_steps(shelf: Shelf) -> list[StepRecord]:
    """All checkpoints of the run, by step."""
    while True:
        names = _step_names(shelf)
        records = [read_step(shelf, step, name) for step, name in names]
        # Else a job that commits one and drops the one before could leave us with neither.
        if _step_names(shelf) == names:
            return [record for record in records if record is not None]


def _step_names(shelf: Shelf) -> list[tuple[int, str]]:
    return sorted((step, name) for name in shelf.names() if (step := parse_step(name)) is not None)


def read_step(shelf: Shelf, step: int, name: str) -> StepRecord | None:
    """One checkpoint, its files looked at but not read; None if it has gone meanwhile."""
    try:
        with shelf.open(name) as storage:
            manifest = read_summary(storage)
            problem = _missing_file(storage, manifest)
    except NotFoundError:
        return StepRecord(step, name, "half-written") if shelf.has(name) else None
    except StorageError:
        raise
    except VersionError as error:
        return StepRecord(step, name, "unknown", str(error))
    except ShardkeepError as error:
        return StepRecord(step, name, "damaged", str(error))
    if problem and not _still_there(shelf, name, manifest):
        # Removed or replaced while it was looked at.
        return read_step(shelf, step, name)
    return record_of(step, name, manifest, problem)


def read_summary(storage: Storage) -> Summary:
    """The summary of what was committed; NotFoundError if nothing was."""
    data = storage.get(MANIFEST_NAME, max_nbytes=MAX_MANIFEST_NBYTES)
    return decode_summary(data, where=f"{storage.location}/{MANIFEST_NAME}")


def _still_there(shelf: Shelf, name: str, manifest: Summary) -> bool:
    try:
        with shelf.open(name) as storage:
            return read_summary(storage).save_id == manifest.save_id
    except (NotFoundError, CorruptError):
        return False


def record_of(step: int, name: str, manifest: Summary, problem: str) -> StepRecord:
    """What a manifest says of a step; `problem` if a file of it is missing."""
    said = manifest.metadata.get(RUN_KEY)
    run: dict[str, Any] = said if isinstance(said, dict) else {}
    return StepRecord(
        step,
        name,
        "damaged" if problem else "committed",
        problem,
        manifest.save_id,
        sum(file.nbytes for file in manifest.files),
        manifest.world,
        _number(run.get("saved_at")),
        decode_metrics(run.get("metrics")),
        _left_behind(run.get("left_behind")),
        _as_dict(run.get("keep")),
    )


def _missing_file(storage: Storage, manifest: Summary) -> str:
    sizes = {entry.key: entry.nbytes for entry in storage.list()}
    for index, record in enumerate(manifest.files):
        name = manifest.file_name(index)
        if name not in sizes:
            return f"{name} is missing"
        if sizes[name] != record.nbytes:
            return f"{name} has {sizes[name]:,} bytes instead of {record.nbytes:,}"
    return ""


def _as_dict(said: object) -> dict[str, Any]:
    return cast("dict[str, Any]", said) if isinstance(said, dict) else {}


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def encode_run(
    step: int, metrics: Mapping[str, Any], left_behind: Mapping[int, str], keep: Retention
) -> dict[str, Any]:
    """What the run says of a step, as `record_of` reads it under `RUN_KEY`."""
    return {
        "step": step,
        "saved_at": time.time(),
        "metrics": encode_metrics(metrics),
        "left_behind": {str(n): save_id for n, save_id in left_behind.items() if n > step},
        "keep": keep.as_json(),
    }


def encode_metrics(metrics: Mapping[str, Any]) -> dict[str, float | str]:
    """Metrics as JSON has them: what is not finite becomes its name.

    >>> encode_metrics({"loss": float("nan"), "accuracy": 1})
    {'loss': 'nan', 'accuracy': 1.0}
    """
    numbers = {name: _as_float(name, value) for name, value in metrics.items()}
    return {
        name: number if number - number == 0 else str(number) for name, number in numbers.items()
    }


def _as_float(name: str, value: Any) -> float:
    try:
        # A loss that still knows its graph would be warned about.
        return float(value.detach() if hasattr(value, "detach") else value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidError(f"the metric {name!r} is no number: {error}") from error


def decode_metrics(said: object) -> dict[str, float]:
    """What `encode_metrics` wrote; what is no number is left out."""
    if not isinstance(said, dict):
        return {}
    found: dict[str, float] = {}
    for name, value in cast("dict[str, object]", said).items():
        if value in ("nan", "inf", "-inf") or isinstance(value, int | float):
            found[name] = float(cast("Any", value))
    return found


def _left_behind(said: object) -> dict[int, str]:
    if not isinstance(said, dict):
        return {}
    found = cast("dict[str, object]", said)
    return {int(step): str(save_id) for step, save_id in found.items() if step.isdecimal()}


def current(records: Sequence[StepRecord]) -> list[StepRecord]:
    """Those that the run goes on from: without what it left behind as it went back."""
    left = {
        (step, save_id)
        for one in records
        if one.condition == "committed"
        for step, save_id in one.left_behind.items()
    }
    return [one for one in records if (one.step, one.save_id) not in left]


def newest(records: Sequence[StepRecord]) -> StepRecord | None:
    """The last committed one that the run goes on from."""
    return next((one for one in reversed(current(records)) if one.condition == "committed"), None)

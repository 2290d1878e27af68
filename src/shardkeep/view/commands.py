"""What does each command find out? Values for tables and for JSON; nothing is printed here."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardkeep.errors import InvalidError, NotFoundError
from shardkeep.manifest import MANIFEST_NAME, Manifest
from shardkeep.plan.retention import Retention
from shardkeep.storage.local import LocalStorage
from shardkeep.storage.shelf import LocalShelf
from shardkeep.transfer.copy_files import copy_checkpoint
from shardkeep.transfer.lazy import Checkpoint
from shardkeep.transfer.progress import Meter
from shardkeep.transfer.retain import RunPrune, prune_run
from shardkeep.transfer.steps import StepRecord, read_steps
from shardkeep.translate.opening import open_source
from shardkeep.view.values import Change, Stats, change_of, stats_of

THREADS = 2


def open_checkpoint(path: Path) -> Checkpoint:
    """A checkpoint; of a run's folder, a clear word on what to do."""
    if not (path / MANIFEST_NAME).exists() and path.is_dir():
        steps = read_steps(LocalShelf(path))
        if steps:
            raise InvalidError(
                f"{path} is a run of {len(steps)} checkpoints; name one of them, such as "
                f"{path / steps[-1].name}"
            )
    return Checkpoint(open_source(path, values=False), threads=THREADS, owns_storage=True)


def steps_of(run: Path) -> list[StepRecord]:
    """The checkpoints of a run."""
    if not run.is_dir():
        raise NotFoundError(f"{run} is not there, or is no folder")
    records = read_steps(LocalShelf(run))
    if not records and (run / MANIFEST_NAME).exists():
        raise InvalidError(f"{run} is one checkpoint, not a run: try `shardkeep show {run}`")
    if not records:
        raise NotFoundError(f"{run} holds no checkpoints: no folder is called step-<number>")
    return records


def keys_of(manifest: Manifest, pattern: str | None) -> list[str]:
    """The keys of tensors that equal the pattern, lie below it, or match it as a glob."""
    from fnmatch import fnmatchcase

    keys = [record.key for record in manifest.tensors]
    if pattern is None:
        return keys
    found = [
        key
        for key in keys
        if key == pattern or key.startswith(f"{pattern}.") or fnmatchcase(key, pattern)
    ]
    if not found:
        near = [key for key in keys if pattern.lower() in key.lower()][:4]
        hint = f"; there are {', '.join(near)}" if near else ""
        raise NotFoundError(f"no tensor is called {pattern!r}{hint}")
    return found


def all_stats(checkpoint: Checkpoint, keys: Sequence[str]) -> dict[str, Stats]:
    """The statistics of several tensors, by as many threads as there are cores."""
    return dict(zip(keys, _in_threads(lambda key: stats_of(checkpoint, key), keys), strict=True))


def _in_threads(act: Callable[[str], Any], keys: Sequence[str]) -> list[Any]:
    import os

    with ThreadPoolExecutor(os.cpu_count() or 1, "shardkeep-view") as pool:
        return list(pool.map(act, keys))


@dataclass(frozen=True, slots=True)
class Difference:
    """What two checkpoints have not in common."""

    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    other_kind: tuple[str, ...]
    """Shapes or dtypes that differ, in words."""
    changes: tuple[Change, ...]
    """Tensors whose values differ, the largest change first."""
    equal: int

    def __bool__(self) -> bool:
        return bool(self.only_a or self.only_b or self.other_kind or self.changes)


def difference(a: Checkpoint, b: Checkpoint, pattern: str | None) -> Difference:
    """How two checkpoints differ; values are compared wherever shapes allow."""
    keys_a = set(keys_of(a.manifest, pattern))
    keys_b = set(keys_of(b.manifest, pattern)) if pattern is None else _matching(b, pattern)
    shared = sorted(keys_a & keys_b)
    kinds: list[str] = []
    comparable: list[str] = []
    for key in shared:
        one, other = a.manifest.tensor(key), b.manifest.tensor(key)
        if one.shape != other.shape:
            kinds.append(f"{key}: shape {list(one.shape)}, {list(other.shape)}")
            continue
        if one.dtype != other.dtype:
            kinds.append(f"{key}: dtype {one.dtype}, {other.dtype}")
        comparable.append(key)
    changes = _in_threads(lambda key: change_of(a, b, key), comparable)
    differ = sorted((c for c in changes if c.changed), key=lambda c: (-c.most, c.key))
    return Difference(
        tuple(sorted(keys_a - keys_b)),
        tuple(sorted(keys_b - keys_a)),
        tuple(kinds),
        tuple(differ),
        len(comparable) - len(differ),
    )


def _matching(checkpoint: Checkpoint, pattern: str) -> set[str]:
    try:
        return set(keys_of(checkpoint.manifest, pattern))
    except NotFoundError:
        return set()


def committed(paths: Sequence[Path]) -> list[Path]:
    """The checkpoints that are meant: a run stands for its committed ones."""
    found: list[Path] = []
    for path in paths:
        if (path / MANIFEST_NAME).exists() or not path.is_dir():
            found.append(path)
        else:
            records = steps_of(path)
            found += [path / one.name for one in records if one.condition != "half-written"]
    return found


def prune_steps(
    run: Path, rule: Retention, *, leftovers: bool, damaged: bool, dry_run: bool
) -> RunPrune:
    """Remove what no rule keeps, or say what would go."""
    steps_of(run)
    if rule == Retention() and not leftovers and not damaged:
        raise InvalidError("say what to keep, such as --keep-last 3; nothing was removed")
    age = 0.0 if leftovers else math.inf
    return prune_run(LocalShelf(run), rule, leftover_seconds=age, damaged=damaged, dry_run=dry_run)


def copy_to(source: Path, target: Path) -> int:
    """Copy a checkpoint, checked; the number of bytes."""
    open_checkpoint(source).close()
    with (
        LocalStorage(source) as here,
        LocalStorage(target, create=True) as there,
        Meter("copying", None, show=True) as meter,
    ):
        return copy_checkpoint(here, there, threads=THREADS, meter=meter)

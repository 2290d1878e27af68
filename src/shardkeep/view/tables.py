"""What do people see of a run and of a checkpoint in a terminal?"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shardkeep.boxes import Box
from shardkeep.manifest import Manifest, TensorRecord, parse_file_name
from shardkeep.transfer.lazy import Checkpoint, TensorInfo
from shardkeep.transfer.steps import StepRecord
from shardkeep.view.values import Change, Stats
from shardkeep.view.words import age_text, number_text, shape_text, size_text

_COLOURS = {"committed": "green", "half-written": "yellow", "damaged": "red", "unknown": "red"}
_RANK_COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red", "white")
_MAX_METRICS = 4
_PICTURE_ROWS, _PICTURE_COLUMNS = 16, 64


def _table(*columns: str, left: Sequence[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        is_left = name in left
        # Names may be folded in a narrow window, numbers stay in one piece.
        table.add_column(
            name, justify="left" if is_left else "right", no_wrap=not is_left, overflow="fold"
        )
    return table


def steps_table(records: Sequence[StepRecord]) -> RenderableType:
    """The checkpoints of a run, one a line."""
    metrics = list(dict.fromkeys(name for one in records for name in one.metrics))[:_MAX_METRICS]
    table = _table("step", "state", "size", "age", "ranks", *metrics, left=("state",))
    now = time.time()
    for one in records:
        age = age_text(now - one.saved_at) if one.saved_at else ""
        state = Text(one.condition, style=_COLOURS[one.condition])
        size, ranks = (size_text(one.nbytes), str(one.world)) if one.save_id else ("", "")
        values = [number_text(one.metrics[m]) if m in one.metrics else "" for m in metrics]
        table.add_row(str(one.step), state, size, age, ranks, *values)
    problems = [Text(f"step {one.step}: {one.problem}") for one in records if one.problem]
    return Group(table, *problems)


def checkpoint_facts(checkpoint: Checkpoint) -> RenderableType:
    """The checkpoint as a whole."""
    manifest = checkpoint.manifest
    table = _table("", " ", left=("", " "))
    table.show_header = False
    for name, value in facts_of(checkpoint).items():
        table.add_row(Text(name, style="bold"), Text(str(value)))
    dtypes: dict[str, int] = {}
    for record in manifest.tensors:
        dtypes[record.dtype] = dtypes.get(record.dtype, 0) + record.nbytes
    shares = ", ".join(f"{name} {size_text(nbytes)}" for name, nbytes in sorted(dtypes.items()))
    if shares:
        table.add_row(Text("dtypes", style="bold"), Text(shares))
    return table


def facts_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """What can be said of a checkpoint in a few words."""
    manifest = checkpoint.manifest
    found: dict[str, Any] = {
        "path": checkpoint.path,
        "save id": manifest.save_id,
        "ranks": manifest.world,
        "tensors": len(manifest.tensors),
        "size": size_text(sum(record.nbytes for record in manifest.tensors)),
        "files": f"{len(manifest.files)}, {size_text(sum(manifest.files.nbytes))}",
    }
    if manifest.metadata:
        found["metadata"] = ", ".join(f"{k}={v}" for k, v in manifest.metadata.items())
    report = checkpoint.report()
    if report is not None:
        slowest = {phase: max(times) for phase, times in report.seconds.items() if times}
        found["slowest"] = ", ".join(f"{phase} {s:.2f} s" for phase, s in slowest.items())
    return found


@dataclass(frozen=True, slots=True)
class Row:
    """A tensor, or several below one name."""

    name: str
    tensors: int
    nbytes: int
    record: TensorRecord | None


def rows_of(manifest: Manifest, depth: int | None) -> list[Row]:
    """Tensors, or what lies below each name of `depth` parts."""
    if depth is None:
        return [Row(one.key, 1, one.nbytes, one) for one in manifest.tensors]
    groups: dict[str, list[TensorRecord]] = {}
    for record in manifest.tensors:
        groups.setdefault(".".join(record.key.split(".")[:depth]), []).append(record)
    return [
        Row(name, len(several), sum(r.nbytes for r in several), None)
        if len(several) > 1 or several[0].key != name
        else Row(name, 1, several[0].nbytes, several[0])
        for name, several in groups.items()
    ]


def tensors_table(rows: Iterable[Row], stats: Mapping[str, Stats] | None) -> Table:
    """Names with shapes, dtypes and sizes; the statistics of each if there are any."""
    extra = ("min", "max", "mean", "std", "nan", "inf") if stats is not None else ()
    table = _table("name", "dtype", "shape", "size", *extra, left=("name", "dtype", "shape"))
    for row in rows:
        if row.record is None:
            table.add_row(Text(row.name), "", f"{row.tensors} tensors", size_text(row.nbytes))
            continue
        cells = [row.record.dtype, shape_text(row.record.shape), size_text(row.nbytes)]
        table.add_row(Text(row.name), *cells, *_stat_cells(row.name, stats))
    return table


def _stat_cells(key: str, stats: Mapping[str, Stats] | None) -> list[Text]:
    if stats is None:
        return []
    one = stats[key]
    numbers = (one.least, one.most, one.mean, one.deviation) if one.finite else ()
    shown = [Text(number_text(number)) for number in numbers] or [Text("")] * 4
    bad = [Text(str(n) if n else "", style="red") for n in (one.nans, one.infs)]
    return [*shown, *bad]


def tensor_picture(info: TensorInfo) -> RenderableType:
    """Which file holds which box: the first two dims drawn, and a list of the boxes."""
    table = _table("rank", "file", "box", left=("file", "box"))
    for number, (box, file) in enumerate(info.chunks[:64]):
        name = parse_file_name(file)
        rank = str(name.rank) if name else "?"
        table.add_row(Text(rank, style=_colour(number)), file, Text(str(box)))
    more = len(info.chunks) - 64
    parts: list[RenderableType] = [_drawn(info), Text(""), table]
    if more > 0:
        parts.append(Text(f"and {more} more"))
    return Group(*parts)


def _colour(number: int) -> str:
    return _RANK_COLOURS[number % len(_RANK_COLOURS)]


def _drawn(info: TensorInfo) -> Text:
    """The tensor as a rectangle; deeper dims at their first index."""
    sides = (*info.shape, 1, 1)[:2]
    rows, columns = min(sides[0], _PICTURE_ROWS), min(sides[1], _PICTURE_COLUMNS)
    text = Text()
    for y in range(rows):
        for x in range(columns):
            cell = (y * sides[0] // rows, x * sides[1] // columns)
            number = _holder(info, cell)
            sign = "?" if number is None else _sign(info.chunks[number][1])
            text.append(sign, style=_colour(number or 0))
        text.append("\n")
    return text


def _sign(file: str) -> str:
    name = parse_file_name(file)
    return "0123456789abcdefghijklmnopqrstuvwxyz"[name.rank % 36] if name else "?"


def _holder(info: TensorInfo, cell: Sequence[int]) -> int | None:
    ndim = len(info.shape)
    point = (*cell, *[0] * ndim)[:ndim]
    wanted = Box(point, tuple(at + 1 for at in point))
    return next((n for n, (box, _) in enumerate(info.chunks) if box.contains(wanted)), None)


def changes_table(changes: Sequence[Change]) -> Table:
    """Tensors that differ, the largest change first."""
    table = _table("name", "largest", "relative", "changed", left=("name",))
    for one in changes:
        table.add_row(
            Text(one.key),
            number_text(one.most),
            number_text(one.most_relative),
            f"{one.fraction:.1%}",
        )
    return table

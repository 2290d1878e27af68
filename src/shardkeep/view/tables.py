"""What do people see of a checkpoint in a terminal?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, cast

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from shardkeep.manifest import Manifest, TensorRecord, parse_file_name
from shardkeep.transfer.lazy import Checkpoint, TensorInfo
from shardkeep.transfer.steps import RUN_KEY, decode_metrics
from shardkeep.translate.foreign import ForeignManifest
from shardkeep.view.opening import format_text
from shardkeep.view.table_style import plain_table
from shardkeep.view.values import Change, Stats
from shardkeep.view.words import clean_text, count_text, number_text, shape_text, size_text

_RANK_COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red", "white")
_PICTURE_ROWS, _PICTURE_COLUMNS = 16, 64
_LISTED = 64
_ROOM = 10_000
_LEFT = ("name", "dtype", "shape")


def checkpoint_facts(checkpoint: Checkpoint) -> RenderableType:
    """The checkpoint as a whole."""
    manifest = checkpoint.manifest
    table = plain_table("", " ", left=("", " "), fold={" ": 12})
    table.show_header = False
    for name, value in facts_of(checkpoint).items():
        table.add_row(Text(name, style="bold"), Text(clean_text(str(value))))
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
    foreign = isinstance(manifest, ForeignManifest)
    # Another format's files do not say who wrote them, and have no name for the save.
    saved = {} if foreign else {"save id": manifest.save_id, "ranks": manifest.world}
    found: dict[str, Any] = {
        "path": checkpoint.path,
        "format": format_text(manifest),
        **saved,
        "tensors": len(manifest.tensors),
        "size": size_text(sum(record.nbytes for record in manifest.tensors)),
        "files": f"{len(manifest.files)}, {size_text(sum(manifest.files.nbytes))}",
    }
    if manifest.metadata:
        found.update(_metadata_facts(manifest.metadata))
    report = None if foreign else checkpoint.report()
    if report is not None:
        slowest = {phase: max(times) for phase, times in report.seconds.items() if times}
        found["slowest"] = ", ".join(f"{phase} {s:.2f} s" for phase, s in slowest.items())
    return found


def _metadata_facts(metadata: Mapping[str, Any]) -> dict[str, str]:
    """What the run and the user say of it."""
    found: dict[str, str] = {}
    run = metadata.get(RUN_KEY)
    if isinstance(run, dict):
        said = cast("dict[str, Any]", run)
        found["step"] = str(said.get("step", "?"))
        metrics = decode_metrics(said.get("metrics")).items()
        if metrics:
            found["metrics"] = ", ".join(f"{k} {number_text(v)}" for k, v in metrics)
    others = [f"{k}={v}" for k, v in metadata.items() if k != RUN_KEY or not found]
    return {**found, "metadata": ", ".join(others)} if others else found


@dataclass(frozen=True, slots=True)
class Row:
    """A tensor, or several below one name."""

    name: str
    tensors: int
    nbytes: int
    record: TensorRecord | None


def rows_of(manifest: Manifest, keys: Sequence[str], depth: int | None) -> list[Row]:
    """Tensors, or what lies below each name of `depth` parts."""
    records = [manifest.tensor(key) for key in keys]
    if depth is None:
        return [Row(one.key, 1, one.nbytes, one) for one in records]
    groups: dict[str, list[TensorRecord]] = {}
    for record in records:
        groups.setdefault(".".join(record.key.split(".")[:depth]), []).append(record)
    return [
        Row(name, len(several), sum(r.nbytes for r in several), None)
        if len(several) > 1 or several[0].key != name
        else Row(name, 1, several[0].nbytes, several[0])
        for name, several in groups.items()
    ]


def tensors_table(
    rows: Sequence[Row], stats: Mapping[str, Stats] | None, console: Console
) -> RenderableType:
    """Names with shapes, dtypes and sizes; the statistics of each if there are any."""
    if stats is None:
        return _kinds_table(rows)
    table = _stats_table(rows, stats, kinds=True)
    # Measured as if there were room: a table is never wider than the window that it is put in.
    if console.measure(table, options=console.options.update(width=_ROOM)).maximum <= console.width:
        return table
    narrow = _stats_table(rows, stats, kinds=False)
    # What many tensors are like can be asked for by itself.
    return Group(_kinds_table(rows), Text(""), narrow) if len(rows) == 1 else narrow


def _name_width(names: Iterable[str]) -> dict[str, int]:
    return {"name": max(map(len, names), default=0)}


def _kinds_table(rows: Sequence[Row]) -> Table:
    fold = _name_width(row.name for row in rows)
    table = plain_table("name", "dtype", "shape", "size", left=_LEFT, fold=fold)
    for row in rows:
        table.add_row(Text(clean_text(row.name)), *_kind_cells(row))
    return table


def _kind_cells(row: Row) -> list[str]:
    if row.record is None:
        return ["", count_text(row.tensors, "tensor"), size_text(row.nbytes)]
    return [row.record.dtype, shape_text(row.record.shape), size_text(row.nbytes)]


def _stats_table(rows: Sequence[Row], stats: Mapping[str, Stats], *, kinds: bool) -> Table:
    columns = ("dtype", "shape", "size") if kinds else ()
    numbers = ("min", "max", "mean", "std", "nan", "inf")
    fold = _name_width(row.name for row in rows)
    table = plain_table("name", *columns, *numbers, left=_LEFT, fold=fold)
    for row in rows:
        cells = _kind_cells(row) if kinds else []
        table.add_row(Text(clean_text(row.name)), *cells, *_stat_cells(stats[row.name]))
    return table


def _stat_cells(one: Stats) -> list[Text]:
    numbers = (one.least, one.most, one.mean, one.deviation) if one.finite else ()
    shown = [Text(number_text(number)) for number in numbers] or [Text("")] * 4
    bad = [Text(str(n) if n else "", style="red") for n in (one.nans, one.infs)]
    return [*shown, *bad]


def tensor_picture(info: TensorInfo) -> RenderableType:
    """Which file holds which box: the first two dims drawn, and a list of the boxes."""
    if not info.chunks:
        return Text("it has no cells, and is stored nowhere")
    files = list(dict.fromkeys(file for _, file in info.chunks))
    ours = all(parse_file_name(file) is not None for file in files)
    # Of another format's files nobody knows the writer: they are numbered as they come.
    number_of = {file: _rank_of(file) if ours else at for at, file in enumerate(files)}
    table = plain_table(
        "rank" if ours else "no.", "file", "box", left=("file", "box"), fold={"file": 12}
    )
    for box, file in info.chunks[:_LISTED]:
        number = number_of[file]
        table.add_row(Text(str(number), style=_colour(number)), clean_text(file), Text(str(box)))
    more = len(info.chunks) - _LISTED
    parts: list[RenderableType] = [_drawn(info, number_of), Text(""), table]
    if more > 0:
        parts.append(Text(f"and {more} more"))
    return Group(*parts)


def _rank_of(file: str) -> int:
    name = parse_file_name(file)
    return name.rank if name else 0


def _colour(number: int) -> str:
    return _RANK_COLOURS[number % len(_RANK_COLOURS)]


def _drawn(info: TensorInfo, number_of: Mapping[str, int]) -> Text:
    """The tensor as a rectangle; deeper dims at their first index."""
    holders = _Holders(info)
    sides = (*info.shape, 1, 1)[:2]
    rows, columns = min(sides[0], _PICTURE_ROWS), min(sides[1], _PICTURE_COLUMNS)
    text = Text(no_wrap=True)
    for y in range(rows):
        text.append("\n" if y else "")
        cells = [(y * sides[0] // rows, x * sides[1] // columns) for x in range(columns)]
        for file, same in groupby(cells, key=holders.at):
            number = number_of[file] if file is not None else 0
            sign = "?" if file is None else _SIGNS[number % 36]
            text.append(sign * len(list(same)), style=_colour(number))
    return text


_SIGNS = "0123456789abcdefghijklmnopqrstuvwxyz"


class _Holders:
    """Which file holds a cell? All boxes are looked at in one go: there may be thousands."""

    def __init__(self, info: TensorInfo) -> None:
        self._info = info
        sides = (len(info.chunks), len(info.shape))
        self._starts = np.array([box.start for box, _ in info.chunks], np.int64).reshape(sides)
        self._stops = np.array([box.stop for box, _ in info.chunks], np.int64).reshape(sides)

    def at(self, cell: Sequence[int]) -> str | None:
        """The file of the cell; further dims are at their first index."""
        ndim = len(self._info.shape)
        point = np.array((*cell, *[0] * ndim)[:ndim], np.int64)
        inside = ((self._starts <= point) & (point < self._stops)).all(axis=1)
        return self._info.chunks[int(inside.argmax())][1] if inside.any() else None


def changes_table(changes: Sequence[Change]) -> Table:
    """Tensors that differ, the largest change first."""
    fold = _name_width(one.key for one in changes)
    table = plain_table("name", "largest", "relative", "changed", left=_LEFT, fold=fold)
    for one in changes:
        table.add_row(
            Text(clean_text(one.key)),
            number_text(one.most),
            number_text(one.most_relative),
            _percent(one),
        )
    return table


def _percent(change: Change) -> str:
    """The part that changed; a few of many cells are not none, and not all."""
    if change.changed == change.count:
        return "100%"
    return f"{min(max(100 * change.fraction, 0.01), 99.99):.2f}%"

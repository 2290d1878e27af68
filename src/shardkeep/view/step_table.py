"""What do people see of a run in a terminal?"""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.text import Text

from shardkeep.transfer.steps import StepRecord
from shardkeep.view.table_style import plain_table
from shardkeep.view.words import age_text, clean_text, number_text, size_text

_COLOURS = {"committed": "green", "half-written": "yellow", "damaged": "red", "unknown": "red"}


def steps_table(records: Sequence[StepRecord], console: Console) -> RenderableType:
    """The checkpoints of a run, one a line, with as many metrics as there is room for."""
    metrics = list(dict.fromkeys(name for one in records for name in one.metrics))
    shown = len(metrics)
    table = _table(records, metrics)
    while shown and console.measure(table).minimum > console.width:
        shown -= 1
        table = _table(records, metrics[:shown])
    notes = [Text(clean_text(f"step {one.step}: {one.problem}")) for one in records if one.problem]
    if shown < len(metrics):
        left = ", ".join(map(clean_text, metrics[shown:]))
        notes.append(Text(f"no room for {left}; --json has all", style="dim"))
    return Group(table, *notes)


def _table(records: Sequence[StepRecord], metrics: Sequence[str]) -> RenderableType:
    names = map(clean_text, metrics)
    table = plain_table("step", "state", "size", "age", "ranks", *names, left=("state",))
    now = time.time()
    for one in records:
        age = age_text(now - one.saved_at) if one.saved_at else ""
        state = Text(one.condition, style=_COLOURS[one.condition], no_wrap=True)
        size, ranks = (size_text(one.nbytes), str(one.world)) if one.save_id else ("", "")
        values = [number_text(one.metrics[m]) if m in one.metrics else "" for m in metrics]
        table.add_row(str(one.step), state, size, age, ranks, *values)
    return table

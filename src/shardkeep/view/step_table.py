"""What do people see of a run in a terminal?

Written out by hand: to import what draws the other tables takes longer than to list a run.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from shardkeep.transfer.steps import StepRecord
from shardkeep.view.words import age_text, clean_text, number_text, size_text

_COLOURS = {"committed": 32, "half-written": 33, "damaged": 31, "unknown": 31}
_BOLD, _DIM = 1, 2
_LEFT = {"state"}
_GAP = "  "


def steps_text(records: Sequence[StepRecord], *, width: int | None, colour: bool) -> str:
    """The checkpoints of a run, one a line, with as many metrics as there is room for."""
    metrics = list(dict.fromkeys(name for one in records for name in one.metrics))
    columns = _columns(records, metrics)
    wide = [max(map(len, column)) for column in columns]
    shown = len(metrics)
    while shown and width and sum(wide[: 5 + shown]) + len(_GAP) * (4 + shown) > width:
        shown -= 1
    lines: list[str] = []
    for at, cells in enumerate(zip(*columns[: 5 + shown], strict=True)):
        padded = [
            cell.ljust(size) if column[0] in _LEFT else cell.rjust(size)
            for cell, size, column in zip(cells, wide, columns, strict=False)
        ]
        if colour:
            padded = _coloured(padded, at, cells[1])
        lines.append(_GAP.join(padded).rstrip())
    lines += [clean_text(f"step {one.step}: {one.problem}") for one in records if one.problem]
    if shown < len(metrics):
        left = ", ".join(map(clean_text, metrics[shown:]))
        lines.append(_styled(f"no room for {left}; --json has all", _DIM, colour))
    return "\n".join(lines)


def _columns(records: Sequence[StepRecord], metrics: Sequence[str]) -> list[list[str]]:
    """The cells, column by column, each below its name."""
    now = time.time()
    found: list[list[str]] = [
        ["step", *(str(one.step) for one in records)],
        ["state", *(one.condition for one in records)],
        ["size", *(size_text(one.nbytes) if one.save_id else "" for one in records)],
        ["age", *(age_text(now - one.saved_at) if one.saved_at else "" for one in records)],
        ["ranks", *(str(one.world) if one.save_id else "" for one in records)],
    ]
    for name in metrics:
        cells = (number_text(one.metrics[name]) if name in one.metrics else "" for one in records)
        found.append([clean_text(name), *cells])
    return found


def _coloured(cells: Sequence[str], row: int, condition: str) -> list[str]:
    if row == 0:
        return [_styled(cell, _BOLD, True) for cell in cells]
    return [cells[0], _styled(cells[1], _COLOURS[condition], True), *cells[2:]]


def _styled(text: str, code: int, colour: bool) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if colour else text

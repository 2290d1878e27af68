"""What does the demo show? Its phases in words, as an SVG picture and as a page of HTML."""

from __future__ import annotations

import math
import signal
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import ClassVar

WAYS = {"fsdp": "FSDP2", "tp": "TP"}
COLORS = {"alone": "#c3cad2", "killed": "#2f6fb3", "stopped": "#2b8a55", "ended": "#8a4fb0"}
RED, INK, FAINT, LINE = "#c62f3b", "#1f2933", "#5d6b79", "#e6eaee"


@dataclass(frozen=True, slots=True)
class Phase:
    """A call of torchrun, and the signal that ends it, soon after a step."""

    name: str
    title: str
    processes: int
    parallel: str
    run: str = "run"
    save_every: int = 10
    signal: signal.Signals | None = None
    at_step: int = 0

    @property
    def way(self) -> str:
        return WAYS[self.parallel]


@dataclass(frozen=True, slots=True)
class Step:
    """What rank 0 wrote down; `blocked` is for how many seconds a save held it up, if any did."""

    number: int
    loss: float
    seconds: float
    blocked: float | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """A phase that is over; `kept` are the steps of the run's checkpoints at its end."""

    COLUMNS: ClassVar = (
        "phase", "ranks", "parallel", "steps", "how it ended", "saves", "blocked"
    )  # fmt: skip
    NUMBERS: ClassVar = ("ranks", "saves", "blocked")

    phase: Phase
    steps: tuple[Step, ...]
    kept: tuple[int, ...]

    @property
    def saves(self) -> list[Step]:
        return [step for step in self.steps if step.blocked is not None]

    @property
    def ending(self) -> str:
        if self.phase.signal == signal.SIGKILL:
            return f"SIGKILL, step {self.kept[-1]} kept"
        if self.phase.signal == signal.SIGTERM:
            return f"SIGTERM, step {self.kept[-1]} kept"
        return "complete"

    @property
    def cells(self) -> tuple[str, ...]:
        """What the table says, in the order of COLUMNS."""
        blocked = [step.blocked for step in self.saves if step.blocked is not None]
        return (
            self.phase.title,
            str(self.phase.processes),
            self.phase.way,
            f"{self.steps[0].number}-{self.steps[-1].number}",
            self.ending,
            str(len(blocked)) if blocked else "-",
            f"{1000 * statistics.median(blocked):.0f} ms each" if blocked else "-",
        )


@dataclass(frozen=True, slots=True)
class Panel:
    """A rectangle of the picture and the values at its edges; `bottom` and `top` are values."""

    x: float
    y: float
    width: float
    height: float
    steps: int
    bottom: float
    top: float

    def at(self, step: float, value: float) -> tuple[float, float]:
        share = (value - self.bottom) / (self.top - self.bottom)
        return self.x + self.width * step / self.steps, self.y + self.height * (1 - share)


def picture(whole: Outcome, parts: Sequence[Outcome]) -> str:
    """The losses of both runs, and below how far they are apart, as SVG."""
    steps = whole.steps[-1].number
    losses = [step.loss for step in whole.steps]
    bottom, top = math.floor(2 * min(losses)) / 2, math.ceil(2 * max(losses)) / 2
    upper = Panel(64, 92, 812, 300, steps, bottom, top)
    lower = Panel(64, 440, 812, 72, steps, -9, -3)
    drawn = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 560" role="img" '
        'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" '
        f'font-size="13" fill="{INK}">',
        "<title>Losses of a run left alone, and of one killed and resumed</title>",
        '<rect width="900" height="560" rx="8" fill="#ffffff"/>',
        text(
            24,
            32,
            "One run left alone, one killed, resumed on 2 processes and on 3",
            size=19,
            bold=True,
        ),
        *legend(),
        *bands(upper, parts),
        *axes(upper, lower),
        line(upper, whole.steps, COLORS["alone"], 9),
        *curves(upper, parts),
        *(mark for part in parts for mark in saves(upper, part)),
        *(mark for part in parts if part.phase.signal for mark in stop(upper, part)),
        *differences(lower, whole, parts),
        "</svg>",
    ]
    return "\n".join(drawn) + "\n"


def text(
    x: float, y: float, words: str, *, size: int = 13, bold: bool = False,
    anchor: str = "start", color: str = INK,
) -> str:  # fmt: skip
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}"{weight} text-anchor="{anchor}" '
        f'fill="{color}">{escape(words)}</text>'
    )


def rule(x1: float, y1: float, x2: float, y2: float, color: str, more: str = "") -> str:
    return f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="{color}" {more}/>'


def legend() -> list[str]:
    """What thick, thin and dotted mean."""
    y = 55
    return [
        rule(28, y, 52, y, COLORS["alone"], 'stroke-width="9" stroke-linecap="round"'),
        text(64, y + 4, "left alone, 4 processes", color=FAINT),
        rule(236, y, 268, y, COLORS["killed"], 'stroke-width="2.2"'),
        text(276, y + 4, "interrupted", color=FAINT),
        dot(376, y, COLORS["killed"]),
        text(388, y + 4, "checkpoint", color=FAINT),
    ]


def dot(x: float, y: float, color: str, hint: str = "") -> str:
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="#ffffff" stroke="{color}" '
        f'stroke-width="2">{f"<title>{escape(hint)}</title>" if hint else ""}</circle>'
    )


def bands(panel: Panel, parts: Sequence[Outcome]) -> Iterable[str]:
    """Which phase a step belongs to for good, named above."""
    starts = [part.steps[0].number - 1 for part in parts]
    for part, start, stop in zip(parts, starts, [*starts[1:], panel.steps], strict=True):
        color = COLORS[part.phase.name]
        (left, y), (right, _) = panel.at(start, panel.top), panel.at(stop, panel.top)
        yield (
            f'<rect x="{left:.1f}" y="{y:.1f}" width="{right - left:.1f}" '
            f'height="{panel.height:.1f}" fill="{color}" opacity="0.07"/>'
        )
        name = f"{part.phase.processes} processes, {part.phase.way}"
        yield text((left + right) / 2, y - 9, name, bold=True, anchor="middle", color=color)


def axes(upper: Panel, lower: Panel) -> Iterable[str]:
    """Lines across, and numbers beside them."""
    for half in range(round(2 * upper.bottom), round(2 * upper.top) + 1):
        yield from across(upper, half / 2, f"{half / 2:.1f}")
    for power in (-9, -7, -5, -3):
        yield from across(lower, power, f"1e{power}")
    for step in range(0, upper.steps + 1, max(1, upper.steps // 10)):
        x, y = lower.at(step, lower.bottom)
        yield text(x, y + 18, str(step), size=12, anchor="middle", color=FAINT)
    yield text(upper.x - 8, upper.y - 9, "loss", bold=True, anchor="end", color=FAINT)
    x, y = lower.at(upper.steps / 2, lower.bottom)
    yield text(x, y + 38, "step", anchor="middle", color=FAINT)


def across(panel: Panel, value: float, words: str) -> list[str]:
    x, y = panel.at(0, value)
    return [
        rule(x, y, x + panel.width, y, LINE),
        text(x - 8, y + 4, words, size=12, anchor="end", color=FAINT),
    ]


def line(panel: Panel, steps: Sequence[Step], color: str, width: float) -> str:
    points = " ".join("{:.1f},{:.1f}".format(*panel.at(it.number, it.loss)) for it in steps)
    return (
        f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="{width}" '
        'stroke-linejoin="round" stroke-linecap="round"/>'
    )


def curves(panel: Panel, parts: Sequence[Outcome]) -> Iterable[str]:
    """A line for each phase, from the checkpoint that it went on from; wide what was lost."""
    known: dict[int, Step] = {}
    for part in parts:
        color = COLORS[part.phase.name]
        before = known.get(part.steps[0].number - 1)
        yield line(panel, [*([before] if before else []), *part.steps], color, 2.2)
        lost = [step for step in part.steps if step.number >= part.kept[-1]]
        if len(lost) > 1:
            yield line(panel, lost, color, 6)
        known.update({step.number: step for step in part.steps})


def saves(panel: Panel, part: Outcome) -> Iterable[str]:
    for step in part.saves:
        hint = f"step {step.number}: training was held up for {1000 * (step.blocked or 0):.0f} ms"
        yield dot(*panel.at(step.number, step.loss), COLORS[part.phase.name], hint)


def stop(panel: Panel, part: Outcome) -> Iterable[str]:
    """The signal that ended a phase."""
    last, is_kill = part.steps[-1], part.phase.signal == signal.SIGKILL
    x, y = panel.at(last.number, last.loss)
    color = RED if is_kill else COLORS[part.phase.name]
    high = panel.y + 66
    yield rule(x, high, x, y - 7, color, 'stroke-width="1.5" stroke-dasharray="4 4"')
    if is_kill:
        cross = f"M{x - 5:.1f} {y - 5:.1f}l10 10m0 -10l-10 10"
        yield f'<path d="{cross}" stroke="{RED}" stroke-width="2.6" stroke-linecap="round"/>'
        lost = last.number - part.kept[-1]
        words = ["SIGKILL to a worker", f"{lost} steps are made again" if lost else "nothing lost"]
    else:
        words = ["SIGTERM", f"saves step {last.number} and leaves"]
    yield text(x, high - 26, words[0], bold=True, anchor="middle", color=color)
    yield text(x, high - 9, words[1], size=12, anchor="middle", color=FAINT)


def differences(panel: Panel, whole: Outcome, parts: Sequence[Outcome]) -> Iterable[str]:
    """A stroke for each step, as high as the power of ten; none where the losses are equal."""
    losses = {step.number: step.loss for step in whole.steps}
    most = largest_difference(whole, parts)
    words = f"difference between the two runs: at most {most:.1e}"
    yield text(panel.x, panel.y - 12, words, bold=True, color=FAINT)
    for part in parts:
        color = COLORS[part.phase.name]
        for step in part.steps:
            apart = abs(step.loss - losses[step.number])
            power = math.log10(apart) if apart else panel.bottom
            (x, y), (_, base) = panel.at(step.number, power), panel.at(0, panel.bottom)
            if y < base:
                yield rule(x, base, x, y, color, 'stroke-width="4"')


def largest_difference(whole: Outcome, parts: Sequence[Outcome]) -> float:
    """Over all steps of the parts, also those that were lost and made again."""
    losses = {step.number: step.loss for step in whole.steps}
    return max(abs(step.loss - losses[step.number]) for part in parts for step in part.steps)


def page(whole: Outcome, parts: Sequence[Outcome], *, tolerance: float) -> str:
    """The picture, the table and what they say, as one file of HTML."""
    difference = largest_difference(whole, parts)
    verdict = (
        f"The losses differ by at most <b>{difference:.1e}</b>: rounding, since sums are taken in "
        "another order on another number of processes."
        if difference <= tolerance
        else f"<b>The losses differ by {difference:.1e}, more than {tolerance:g}.</b>"
    )
    return PAGE.format(
        picture=picture(whole, parts),
        verdict=verdict,
        head=row("th", Outcome.COLUMNS),
        body="\n".join(row("td", outcome.cells, colored(outcome)) for outcome in (whole, *parts)),
    )


def row(tag: str, cells: Sequence[str], first: Callable[[str], str] = escape) -> str:
    shown = [first(cells[0]), *map(escape, cells[1:])]
    right = [name in Outcome.NUMBERS for name in Outcome.COLUMNS]
    parts = [
        f"<{tag}{' class=n' if is_number else ''}>{cell}</{tag}>"
        for cell, is_number in zip(shown, right, strict=True)
    ]
    return f"<tr>{''.join(parts)}</tr>"


def colored(outcome: Outcome) -> Callable[[str], str]:
    return lambda cell: f'<i style="background:{COLORS[outcome.phase.name]}"></i>{escape(cell)}'


PAGE = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>shardkeep: a killed run, resumed on other processes</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; color: #1f2933; background: #f5f7f9;
  max-width: 900px; margin: 2rem auto; padding: 0 1rem; }}
svg {{ width: 100%; height: auto; box-shadow: 0 1px 4px #0002; border-radius: 8px; }}
table {{ border-collapse: collapse; width: 100%; font-size: 14px; }}
th, td {{ text-align: left; vertical-align: top; padding: .4rem .7rem .4rem 0;
  border-bottom: 1px solid #dde3e8; }}
th {{ color: #5d6b79; font-weight: 500; }}
.n {{ text-align: right; }}
i {{ display: inline-block; width: .7em; height: .7em; border-radius: 50%; margin-right: .5em; }}
code {{ background: #e9edf1; padding: .1em .3em; border-radius: 3px; }}
</style>
<h1>A killed run, resumed on other processes</h1>
<p>A small GPT is trained twice on the same text. One run is left alone. The other loses a worker to
SIGKILL between two checkpoints, goes on under tensor parallelism on two processes, is stopped by
SIGTERM, and ends on three. {verdict}</p>
{picture}
<h2>Phases</h2>
<table>
{head}
{body}
</table>
<p>Saves go on in the background. <em>Blocked</em> is the median time for which one held training
up; the save that answers SIGTERM is waited for. The script is
<code>examples/train_gpt.py</code>; the checkpoints and the output of each phase lie beside this
page.</p>
</html>
"""

"""How do figures and claims look in a terminal?"""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from benchmarks.claims import Claim, value_text
from benchmarks.figures import OURS, RAW, Figure, grouped

_STYLES = {"met": "green", "not met": "red", "not measured": "dim"}


def console() -> Console:
    """Wide enough where there is no terminal."""
    return Console(width=None if Console().is_terminal else 150)


def figures_table(title: str, figures: Sequence[Figure]) -> Table:
    """Medians, and how they relate to ours and to the limit."""
    table = Table(title=title)
    for name in ("setting", "act", "contender"):
        table.add_column(name, no_wrap=True)
    for name in ("median", "x ours", "x raw", "least", "most", "CPU"):
        table.add_column(name, justify="right", no_wrap=True)
    for (_, setting, act), several in grouped(figures).items():
        for number, one in enumerate(several):
            names = ("", "") if number else (setting, act)
            table.add_row(*names, one.contender, *_cells(one, several))
        if len(several) > 1:
            table.add_section()
    return table


def _cells(one: Figure, several: Sequence[Figure]) -> list[str]:
    if not one.values:
        return [one.note[:24], "", "", "", "", ""]
    cpu = sorted(one.cpu_seconds)
    return [
        value_text(one.median, one.unit),
        times_text(one, several, OURS),
        times_text(one, several, RAW),
        value_text(min(one.values), one.unit),
        value_text(max(one.values), one.unit),
        value_text(cpu[len(cpu) // 2], "s") if cpu else "",
    ]


def times_text(one: Figure, several: Sequence[Figure], other: str) -> str:
    """How many times the other's figure this one is."""
    for rival in several:
        if rival.contender == other and rival.values and rival.median:
            return f"{one.median / rival.median:.2f}"
    return ""


def notes(figures: Sequence[Figure]) -> list[str]:
    """Who could not do what, and why."""
    return [
        f"{one.contender} ({one.setting}, {one.act}): {one.note}" for one in figures if one.note
    ]


def claims_table(claims: Sequence[Claim]) -> Table:
    """Each with what was asked and what is reached."""
    table = Table(title="Asked and reached")
    table.add_column("")
    table.add_column("what")
    for name in ("asked", "reached", ""):
        table.add_column(name, justify="right", no_wrap=True)
    for one in claims:
        verdict = f"[{_STYLES[one.verdict]}]{one.verdict}[/]"
        verdict += f" ({one.remark})" if one.remark else ""
        table.add_row(one.workload, one.what, one.asked_text, one.reached_text, verdict)
    return table

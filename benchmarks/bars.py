"""How do figures look as bars? SVG that is legible on light and on dark pages."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from benchmarks.claims import value_text
from benchmarks.figures import OURS, RAW, Figure

_WIDTH, _MARGIN, _GAP = 900, 24, 36
_ROW, _BAR, _NAMES, _VALUES = 23, 15, 176, 64
_TITLE, _HEADING = 46, 30
_STYLE = """
.card { fill: #ffffff } text { fill: #1f2933 } .faint { fill: #5d6b79 }
.ours { fill: #2f6fb3 } .raw { fill: #9aa5b1 } .other { fill: #d3d9df }
@media (prefers-color-scheme: dark) {
.card { fill: #161b22 } text { fill: #e6edf3 } .faint { fill: #9aa7b4 }
.ours { fill: #58a6ff } .raw { fill: #7d8894 } .other { fill: #3d4650 }
}
"""


@dataclass(frozen=True)
class Bar:
    """One figure, by whatever name."""

    name: str
    value: float
    unit: str
    kind: str

    @classmethod
    def of(cls, one: Figure) -> "Bar":
        return cls(one.contender, one.median, one.unit, _kind(one.contender))


@dataclass(frozen=True)
class Panel:
    """Some bars of the same unit, under one heading."""

    heading: str
    bars: Sequence[Bar]

    @classmethod
    def of(cls, heading: str, figures: Sequence[Figure]) -> "Panel":
        """Least first; without those who did not take part."""
        bars = [Bar.of(one) for one in figures if one.values]
        return cls(heading, sorted(bars, key=lambda bar: bar.value))

    @property
    def height(self) -> int:
        return _HEADING + _ROW * len(self.bars)


def picture(title: str, panels: Sequence[Panel]) -> str:
    """Panels in two columns, each bar with its name and value."""
    width = (_WIDTH - 2 * _MARGIN - _GAP) // 2
    marks: list[str] = []
    top = _TITLE
    for first in range(0, len(panels), 2):
        pair = panels[first : first + 2]
        for number, panel in enumerate(pair):
            marks += _panel(panel, _MARGIN + number * (width + _GAP), top, width)
        top += max(panel.height for panel in pair) + _MARGIN // 2
    height = top + _MARGIN // 2
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
            'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" '
            'font-size="13">',
            f"<title>{escape(title)}</title>",
            f"<style>{_STYLE}</style>",
            f'<rect class="card" width="{_WIDTH}" height="{height}" rx="8"/>',
            f'<text x="{_MARGIN}" y="32" font-size="18" font-weight="600">{escape(title)}</text>',
            *marks,
            "</svg>",
            "",
        ]
    )


def _panel(panel: Panel, left: int, top: int, width: int) -> list[str]:
    marks = [f'<text x="{left}" y="{top + 19}" font-weight="600">{escape(panel.heading)}</text>']
    room = width - _NAMES - _VALUES
    largest = max((bar.value for bar in panel.bars), default=0) or 1
    for number, bar in enumerate(panel.bars):
        length = max(1.0, room * bar.value / largest)
        marks += _marks(bar, left, top + _HEADING + number * _ROW, length)
    return marks


def _marks(bar: Bar, left: int, y: int, length: float) -> list[str]:
    start, middle = left + _NAMES, y + _BAR - 3
    weight = ' font-weight="600"' if bar.name == OURS else ""
    value = escape(value_text(bar.value, bar.unit))
    return [
        f'<text x="{start - 8}" y="{middle}" font-size="12" text-anchor="end"{weight}>'
        f"{escape(bar.name)}</text>",
        f'<rect class="{bar.kind}" x="{start}" y="{y}" width="{length:.1f}" height="{_BAR}" '
        'rx="2"/>',
        f'<text class="faint" x="{start + length + 6:.1f}" y="{middle}" font-size="12">'
        f"{value}</text>",
    ]


def _kind(contender: str) -> str:
    """The class of its bar."""
    if contender.startswith(OURS):
        return "ours"
    return "raw" if contender in (RAW, "warm copy, 2 threads", "no save") else "other"

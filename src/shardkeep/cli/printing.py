"""How do commands speak to people and to programs?"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

# What a pipe gets must not be folded to the width of a window that nobody sees.
_PIPE_WIDTH = 4000


def has_colour() -> bool:
    """Whether somebody sees colours, and wants to."""
    wanted = "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    return sys.stdout.isatty() and wanted


def window_width() -> int | None:
    """The width of the window; None for a pipe."""
    import shutil

    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def console() -> Console:
    """Where people read: as wide as their window, with colours only there."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False)


def print_out(*what: RenderableType, out: Console | None = None) -> None:
    """Print tables and lines; what goes to a pipe has no blanks at the ends of lines."""
    out = out or console()
    with out.capture() as captured:
        for one in what:
            out.print(one, soft_wrap=isinstance(one, str))
    text = captured.get()
    if not out.is_terminal:
        text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    sys.stdout.write(text)


def print_lines(lines: Iterable[str]) -> None:
    """Print text as it is, but for what could steer a terminal."""
    from rich.text import Text

    from shardkeep.view.words import clean_text

    print_out(*(Text(clean_text(line)) for line in lines))


def print_json(value: Any) -> int:
    """Print a value as JSON; the exit code 0."""
    import json

    print(json.dumps(_finite(value), indent=2, default=str))
    return 0


def _finite(value: Any) -> Any:
    """JSON has no nan and no inf: they are written as text, as metrics have them."""
    if isinstance(value, float) and value - value != 0:
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in cast("dict[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in cast("list[Any]", value)]
    return value

"""Where on a page does a table go that a command writes? Between two marks."""

from __future__ import annotations

from pathlib import Path


def marks(name: str) -> tuple[str, str]:
    """The lines before and after it."""
    return f"<!-- {name}: start -->", f"<!-- {name}: stop -->"


def put_between(page: Path, name: str, text: str) -> None:
    """Put `text` in the place of what is between the marks now."""
    start, stop = marks(name)
    before, rest = page.read_text().split(start)
    page.write_text(f"{before}{start}\n{text}\n{stop}{rest.split(stop)[1]}")

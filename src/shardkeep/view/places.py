"""What does a word on the command line name: a path, or a URL?"""

from __future__ import annotations

import re
from pathlib import Path

# The parser makes paths of words, which takes a slash from URLs.
_SHORTENED = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/([^/].*)", re.DOTALL)

Place = Path | str
"""A local path, or a URL."""


def place_of(word: Path | str) -> Place:
    """The path, or the URL that it was before it became one.

    >>> place_of(Path("s3://bucket/runs/a")), place_of(Path("file:///runs/a"))
    ('s3://bucket/runs/a', 'file:///runs/a')
    """
    if isinstance(word, str):
        return word if "://" in word else Path(word)
    found = _SHORTENED.fullmatch(str(word))
    if not found or word.exists():
        return word
    # Of three slashes one is left, too: the host of a file's URL is empty.
    host = "/" if found[1].lower() == "file" else ""
    return f"{found[1]}://{host}{found[2]}"


def below(place: Place, name: str) -> Place:
    """What is called `name` there."""
    return f"{place.rstrip('/')}/{name}" if isinstance(place, str) else place / name

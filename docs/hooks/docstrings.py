"""How do docstrings become pages? Their examples get fences, so that they are shown as code."""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^( *)>>> .*\n?(?:^\1\S.*\n?)*", re.MULTILINE)


def fenced(text: str) -> str:
    """The docstring with each run of `>>>` lines in a fence."""
    return _EXAMPLE.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", text)


class Docstrings(griffe.Extension):
    """Called for every class, function and attribute that has a docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)

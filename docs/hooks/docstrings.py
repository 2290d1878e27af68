"""How do docstrings become pages?

Their examples get fences, so that they are shown as code, and defaults that are constants of their
module are shown as the values that they are.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^( *)>>> .*\n?(?:^\1\S.*\n?)*", re.MULTILINE)


def fenced(text: str) -> str:
    """The docstring with each run of `>>>` lines in a fence."""
    return _EXAMPLE.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", text)


class Docstrings(griffe.Extension):
    """Called for every class, function and attribute."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        for parameter in func.parameters:
            value = _constant(func.module, str(parameter.default))
            if value is not None:
                parameter.default = value


def _constant(module: griffe.Module, name: str) -> str | griffe.Expr | None:
    found = module.members.get(name)
    if isinstance(found, griffe.Alias):
        found = found.final_target if found.resolved else None
    return found.value if isinstance(found, griffe.Attribute) else None

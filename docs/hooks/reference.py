"""Which names are public, and where in the reference do they stand?"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import griffe

ROOT = Path(__file__).parents[2]
# An object of the reference, and the options for it alone.
_SHOWN = re.compile(r"^::: (shardkeep\.[\w.]+)\n((?: +.*\n)*)", re.MULTILINE)
_HIDDEN = re.compile(r'"!\^(\w+)\$"')


def public_names() -> list[str]:
    """What `shardkeep` exports."""
    import shardkeep

    return list(vars(shardkeep)["__all__"])


def shown_on(docs: Path) -> dict[str, list[str]]:
    """Each object of the reference by its path, with the pages that show it."""
    found: dict[str, list[str]] = {}
    for page in sorted(docs.glob("api/*.md")):
        for path, _ in _SHOWN.findall(page.read_text()):
            found.setdefault(path, []).append(f"api/{page.name}")
    return found


def links(docs: Path) -> dict[str, str]:
    """The place in the reference of each object, by its name alone."""
    return {_name(path): f"{pages[0]}#{path}" for path, pages in shown_on(docs).items()}


def _name(path: str) -> str:
    return path.rpartition(".")[2]


def members(docs: Path) -> dict[str, dict[str, str]]:
    """The documented members of each class of the reference, with their places."""
    text = "".join(page.read_text() for page in docs.glob("api/*.md"))
    hidden = {path: _HIDDEN.findall(options) for path, options in _SHOWN.findall(text)}
    return {
        _name(path): {
            member: f"{pages[0]}#{path}.{member}"
            for member in _documented(path)
            if member not in hidden[path]
        }
        for path, pages in shown_on(docs).items()
    }


def _documented(path: str) -> list[str]:
    one = _package()[path.removeprefix("shardkeep.")]
    one = one.final_target if isinstance(one, griffe.Alias) else one
    if not isinstance(one, griffe.Class):
        return []
    return [
        name
        for name, member in one.members.items()
        if not name.startswith("_") and not member.is_alias and member.docstring is not None
    ]


@cache
def _package() -> griffe.Module:
    loaded = griffe.load("shardkeep", search_paths=[ROOT / "src"], resolve_aliases=True)
    assert isinstance(loaded, griffe.Module)
    return loaded

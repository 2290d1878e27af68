"""Which names are public, and where in the reference do they stand?"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import griffe

ROOT = Path(__file__).parents[2]
_SHOWN = re.compile(r"^::: (shardkeep\.[\w.]+)$", re.MULTILINE)


def public_names() -> list[str]:
    """What `shardkeep` exports."""
    import shardkeep

    return list(vars(shardkeep)["__all__"])


def shown_on(docs: Path) -> dict[str, list[str]]:
    """Each object of the reference by its path, with the pages that show it."""
    found: dict[str, list[str]] = {}
    for page in sorted(docs.glob("api/*.md")):
        for path in _SHOWN.findall(page.read_text()):
            found.setdefault(path, []).append(f"api/{page.name}")
    return found


def links(docs: Path) -> dict[str, str]:
    """The place in the reference of each name, without `shardkeep.` in front of it."""
    return {
        path.removeprefix("shardkeep."): f"{pages[0]}#{path}"
        for path, pages in shown_on(docs).items()
    }


def members(docs: Path) -> dict[str, dict[str, str]]:
    """The documented members of each class and module of the reference, with their places."""
    return {
        name: {member: f"{link}.{member}" for member in _documented(f"shardkeep.{name}")}
        for name, link in links(docs).items()
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

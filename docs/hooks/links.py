"""Where do the links of a page lead, once the page is part of the site?

Pages are written so that their links work in the repository. Some files beside `docs/` are pages of
the site, too; what is no page at all is named instead of linked.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Container

from docs.hooks.sections import lines_of

# Pages of the site that lie elsewhere in the repository.
ELSEWHERE = {
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
    "attacks.md": "conformance/attacks/README.md",
}
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)")
_SPAN = re.compile(r"(`+)(?:sk\.)?([A-Za-z_]\w*)(?:\(\))?\1(?!\])")
# Text of a link, and code: what stands in them stays as it is.
_CLOSED = re.compile(r"\[[^\]]*\](?:\([^)]*\)|\[[^\]]*\])|!\[[^\]]*\]\([^)]*\)")


def source_of(page: str) -> str:
    """The repository's file that a page of the site is made of."""
    return ELSEWHERE.get(page, f"docs/{page}")


def page_of(source: str) -> str | None:
    """The page of the site that a file of the repository becomes; None if it is no page."""
    for page, elsewhere in ELSEWHERE.items():
        if source == elsewhere:
            return page
    return source.removeprefix("docs/") if source.startswith("docs/") else None


def relinked(page: str, text: str) -> str:
    """The page's text with links that hold in the site."""
    return "".join(
        line if is_code else _LINK.sub(lambda found: _relinked(page, found), line)
        for line, is_code in lines_of(text)
    )


def _relinked(page: str, found: re.Match[str]) -> str:
    label, target = found.groups()
    path, hash_sign, anchor = target.partition("#")
    if "://" in target or not path:
        return found[0]
    source = posixpath.normpath(posixpath.join(posixpath.dirname(source_of(page)), path))
    to = page_of(source)
    if to is None:
        return f"{label} (`{source}`)" if label != source else f"`{source}`"
    relative = posixpath.relpath(to, posixpath.dirname(page) or ".")
    return f"[{label}]({relative}{hash_sign}{anchor})"


def with_references(text: str, names: Container[str]) -> str:
    """The page's text with each public name linked to its reference, once in each section."""
    lines: list[str] = []
    said: set[str] = set()
    for line, is_code in lines_of(text):
        if not is_code and line.startswith("#"):
            said.clear()
        keep = is_code or line.startswith("#") or line.lstrip().startswith(":::")
        lines.append(line if keep else _referenced(line, names, said))
    return "".join(lines)


def _referenced(line: str, names: Container[str], said: set[str]) -> str:
    def link(found: re.Match[str]) -> str:
        name = found[2]
        if name not in names or name in said:
            return found[0]
        said.add(name)
        return f"[{found[0]}][shardkeep.{name}]"

    parts: list[str] = []
    at = 0
    for closed in _CLOSED.finditer(line):
        parts += [_SPAN.sub(link, line[at : closed.start()]), closed[0]]
        at = closed.end()
    return "".join([*parts, _SPAN.sub(link, line[at:])])

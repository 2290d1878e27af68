"""Which sections does a page have, and what does each of them say?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from markdown.extensions.toc import slugify, unique

_HEADING = re.compile(r"(#{1,6}) +(.*?) *#*\n?")
_MARK = re.compile(r"^<!-- keywords: (.*?) -->\n?", re.MULTILINE)


@dataclass(frozen=True)
class Section:
    """A heading of a page with what stands below it, up to the next heading."""

    page: str
    """As the site calls it, such as `runs.md`."""
    page_title: str
    title: str
    anchor: str
    """Empty for what stands below the page's own title."""
    prose: str
    code: str
    """What stands in fences."""
    marks: tuple[str, ...]
    """Keywords that the page itself puts here: `<!-- keywords: commit, manifest -->`."""

    @property
    def link(self) -> str:
        return f"{self.page}#{self.anchor}" if self.anchor else self.page

    @property
    def label(self) -> str:
        return f"{self.page_title}: {self.title}" if self.anchor else self.page_title


def sections_of(page: str, text: str) -> list[Section]:
    """The sections of a page, in its order; anchors are those that the site makes."""
    found: list[Section] = []
    known: set[str] = set()
    for title, prose, code in _split(text):
        anchor = unique(slugify(title, "-"), known)
        page_title = found[0].title if found else title
        marks = [one.strip() for group in _MARK.findall(prose) for one in group.split(",")]
        anchor = anchor if found else ""
        found.append(Section(page, page_title, title, anchor, prose, code, tuple(marks)))
    return found


def with_hidden_marks(text: str) -> str:
    """The page with its keywords where search finds them and readers do not see them."""
    return _MARK.sub(r"<span hidden>\1</span>\n", text)


def lines_of(text: str) -> Iterator[tuple[str, bool]]:
    """Each line, and whether it belongs to a fence."""
    fence = ""
    for line in text.splitlines(keepends=True):
        mark = re.match(r" *(`{3,})", line)
        if fence:
            yield line, True
            if mark and line.strip() == fence:
                fence = ""
        else:
            yield line, mark is not None
            fence = mark[1] if mark else ""


def _split(text: str) -> Iterator[tuple[str, str, str]]:
    """Title, prose and code of each section."""
    title, prose, code = "", "", ""
    for line, is_code in lines_of(text):
        heading = None if is_code else _HEADING.fullmatch(line)
        if heading is None:
            prose, code = (prose, code + line) if is_code else (prose + line, code)
            continue
        if title:
            yield title, prose, code
        title, prose, code = re.sub(r"[`*]", "", heading[2]), "", ""
    yield title, prose, code

"""Where is each name and each concept explained?

Names are those that `shardkeep` exports, their members, and what stands in the first column of a
table. Concepts are the words of the first page, and what a page marks as explained in a section:
`<!-- keywords: commit, manifest -->`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from docs.hooks.sections import Section

_MAX_PLACES = 3
_CELL = re.compile(r"^\| *((?:`[^`|]+`(?:, | and | or |/| )*)+) *\|", re.MULTILINE)
_WORD = re.compile(r"^\| ([A-Za-z][A-Za-z ,]*) \|", re.MULTILINE)
_NAME = re.compile(r"(?:sk\.)?([A-Za-z_][\w.]*)(?=\(|=|$)")
# What a sign that a section explains a name is worth.
_MARKED, _IN_TITLE, _IN_TABLE, _IN_PROSE, _IN_CODE = 1000, 100, 50, 5, 1


# Search finds the places themselves.
_NOT_SEARCHED = "---\nsearch:\n  exclude: true\n---\n"
DIV = '<div class="keywords" markdown>'


@dataclass(frozen=True)
class Place:
    """A link of the index."""

    label: str
    link: str


@dataclass(frozen=True)
class Keyword:
    """An entry of the index."""

    text: str
    is_name: bool
    places: tuple[Place, ...]

    @property
    def letter(self) -> str:
        return self.text.lstrip("_-")[0].upper()


def keywords(
    sections: Sequence[Section], names: Mapping[str, str], members: Mapping[str, Mapping[str, str]]
) -> list[Keyword]:
    """The index, in its order.

    `names` are public, with the place of their reference; `members` are those of each class.
    """
    found = [_of_name(name, link, sections) for name, link in names.items()]
    found += _of_members(members, names)
    taken = {one.text for one in found}
    found += [one for one in _of_tables(sections) if one.text not in taken]
    found += _of_concepts(sections, {one.text for one in found})
    return sorted(found, key=lambda one: (one.letter, one.text.lstrip("_-").casefold(), one.text))


def index_page(found: Iterable[Keyword]) -> str:
    """The index as a page."""
    lines = [
        _NOT_SEARCHED,
        "# Keyword index",
        "",
        "Every public name and every concept, and where it is explained.",
    ]
    for letter, group in groupby(found, key=lambda one: one.letter):
        lines += ["", f"## {letter}", "", DIV, "", *map(_line, group), "", "</div>"]
    return "\n".join(lines) + "\n"


def _line(one: Keyword) -> str:
    text = f"`{one.text}`" if one.is_name else one.text
    return f"- {text}: " + ", ".join(f"[{place.label}]({place.link})" for place in one.places)


def _of_name(name: str, link: str, sections: Sequence[Section]) -> Keyword:
    return Keyword(name, True, (Place("reference", link), *_explained(name, sections)))


def _explained(name: str, sections: Sequence[Section]) -> list[Place]:
    """The sections that say most about a name, best first."""
    scores = [(_score(name, section), section) for section in sections]
    ranked = sorted((one for one in scores if one[0]), key=lambda one: -one[0])
    told = [section for score, section in ranked if score >= _IN_PROSE] or [
        section for _, section in ranked[:1]
    ]
    return [Place(section.label, section.link) for section in told[:_MAX_PLACES]]


def _score(name: str, section: Section) -> int:
    word = rf"(?<![\w.]){re.escape(name)}(?!\w)"
    in_span = len(re.findall(rf"`[^`\n]*(?<![\w]){re.escape(name)}(?!\w)[^`\n]*`", section.prose))
    return (
        _MARKED * (name in section.marks)
        + _IN_TITLE * bool(re.search(word, section.title))
        + _IN_TABLE * (name in _cell_names(section))
        + _IN_PROSE * min(in_span, 4)
        + _IN_CODE * min(len(re.findall(rf"\b{re.escape(name)}\b", section.code)), 4)
    )


def _of_members(
    members: Mapping[str, Mapping[str, str]], names: Mapping[str, str]
) -> list[Keyword]:
    """One entry for all members of a name: `shape` of a box, of a layout, and so on."""
    owners: dict[str, list[Place]] = {}
    for owner, own in members.items():
        for name, link in own.items():
            owners.setdefault(name, []).append(Place(f"of {owner}", link))
    return [
        Keyword(name, True, tuple(places)) for name, places in owners.items() if name not in names
    ]


def _of_tables(sections: Sequence[Section]) -> list[Keyword]:
    """What the first columns of tables define: options, commands, fields."""
    found: dict[str, list[Place]] = {}
    for section in sections:
        for name in _cell_names(section):
            places = found.setdefault(name, [])
            if len(places) < _MAX_PLACES:
                places.append(Place(section.label, section.link))
    return [Keyword(name, True, tuple(places)) for name, places in found.items()]


def _cell_names(section: Section) -> list[str]:
    spans = [span for cell in _CELL.findall(section.prose) for span in re.findall(r"`(.+?)`", cell)]
    matches = [_NAME.match(span) for span in spans]
    return list(dict.fromkeys(match[1] for match in matches if match))


def _of_concepts(sections: Sequence[Section], taken: set[str]) -> list[Keyword]:
    found: dict[str, list[Place]] = {}
    for section in sections:
        for text in (*section.marks, *_words(section)):
            if text not in taken:
                found.setdefault(text, []).append(Place(section.label, section.link))
    return [Keyword(text, text.startswith("shardkeep "), tuple(p)) for text, p in found.items()]


def _words(section: Section) -> list[str]:
    """The words that the first page lists."""
    if section.title != "Words":
        return []
    return [word.strip() for cell in _WORD.findall(section.prose) for word in cell.split(",")]

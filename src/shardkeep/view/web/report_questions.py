"""What is a reader of a report likely to ask? Decided from what is there, largest first.

Structure comes whole, up to very many tensors; values of the tensors that are largest or changed
most, since each takes room in the file and time to read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from shardkeep.errors import NotFoundError, ShardkeepError
from shardkeep.view.web.library import Library

_TILINGS = 2000
_VALUES = 24
_CHANGES = 24
_DRIFTS = 8
_COMPARED_NBYTES = 4 * 2**30
_MESHES = ("dp=2", "dp=4", "dp=8", "dp=16", "tp=2", "tp=4", "dp=2,tp=2", "dp=4,tp=2", "pp=2",
           "dp=2,tp=2,pp=2")  # fmt: skip
_FEW_MESHES = ("dp=8", "dp=4,tp=2")
_MANY_TENSORS = 20_000


@dataclass(frozen=True, slots=True)
class Question:
    """A page with what is asked of it."""

    page: str
    query: tuple[tuple[str, str], ...]

    @property
    def key(self) -> str:
        """The question as one text, the same as the page's script makes of it.

        >>> question("tensor", key="w", at="0").key
        'tensor\\nat=0\\nkey=w'
        """
        return "\n".join([self.page, *(f"{name}={value}" for name, value in self.query)])


def question(page: str, **query: str) -> Question:
    """The question with its parts in order."""
    return Question(page, tuple(sorted(query.items())))


Ask = Callable[[Question], bytes]


def questions_of(library: Library, ask: Ask) -> None:
    """Ask all that a report answers."""
    ask(question("home"))
    alone: list[str] = []
    for place in library.places:
        if place.kind == "checkpoint":
            alone.append(place.id)
            _checkpoint(place.id, ask, [])
        else:
            _run(place.id, ask)
    for b in alone[1:]:
        _compare(alone[0], b, ask)


def _run(run: str, ask: Ask) -> None:
    page = _decoded(ask(question("run", run=run)))
    steps = page["steps"]
    good = [one["at"] for one in steps if one["state"] == "committed"]
    if not good:
        raise NotFoundError(f"{page['path']} holds no committed checkpoint to report on")
    drifting = _checkpoint(good[-1], ask, [])
    for at in dict.fromkeys([good[0], *good[-2:-1]]):
        if at != good[-1]:
            _checkpoint(at, ask, drifting)
            _compare(at, good[-1], ask)
    if len(good) > 1:
        for key in drifting[:_DRIFTS]:
            _try(ask, question("drift", run=run, key=key))


def _checkpoint(at: str, ask: Ask, also: Sequence[str]) -> list[str]:
    """Ask about a checkpoint; the keys of its largest tensors."""
    tensors = _decoded(ask(question("checkpoint", at=at)))["tensors"]
    sizes = dict(zip(tensors["keys"], tensors["nbytes"], strict=True))
    keys = sorted(sizes, key=lambda key: (-sizes[key], key))
    for key in keys[:_TILINGS]:
        _try(ask, question("tensor", at=at, key=key))
    shown = dict.fromkeys([*(key for key in also if key in sizes), *keys])
    for key in list(shown)[:_VALUES]:
        _values(at, key, ask)
    for mesh in _FEW_MESHES if len(keys) > _MANY_TENSORS else _MESHES:
        _try(ask, question("what-if", at=at, mesh=mesh))
    return keys[:_VALUES]


def _values(at: str, key: str, ask: Ask) -> None:
    _try(ask, question("values", at=at, key=key))
    _try(ask, question("slice", at=at, key=key))


def _try(ask: Ask, question: Question) -> None:
    """Ask; what is damaged leaves the rest of the report to be written."""
    with suppress(ShardkeepError):
        ask(question)


def _compare(a: str, b: str, ask: Ask) -> None:
    sizes = [_decoded(ask(question("checkpoint", at=at)))["nbytes"] for at in (a, b)]
    if sum(sizes) > _COMPARED_NBYTES:
        return
    with suppress(ShardkeepError):
        changes = _decoded(ask(question("compare", a=a, b=b)))
        for key in changes["keys"][:_CHANGES]:
            _try(ask, question("spread", a=a, b=b, key=key))


def _decoded(answer: bytes) -> Any:
    return msgspec.json.decode(answer)

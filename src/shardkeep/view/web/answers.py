"""Which question gets which answer? All of the viewer but HTTP: a report asks the same ones."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

import shardkeep
from shardkeep.errors import InvalidError, NotFoundError
from shardkeep.view.web.checkpoint_page import checkpoint_page
from shardkeep.view.web.library import Library
from shardkeep.view.web.run_page import run_page

Query = Mapping[str, str]

_MOST_KNOWN = 32


class Answers:
    """Answers questions about what was opened; several threads may ask."""

    def __init__(self, library: Library, *, slice_side: int = 256) -> None:
        self._library = library
        self._slice_side = slice_side
        # One after the other: each reads with all cores. What takes long stands in nobody's way.
        self._reading = threading.Lock()
        self._comparing = threading.Lock()
        self._known: OrderedDict[tuple[str, ...], bytes] = OrderedDict()
        self._pages: dict[str, Callable[[Query], bytes]] = {
            "home": self._home,
            "run": self._run,
            "checkpoint": self._checkpoint,
            "tensor": self._tensor,
            "values": self._values,
            "slice": self._slice,
            "compare": self._compare,
            "spread": self._spread,
            "drift": self._drift,
            "what-if": self._what_if,
        }

    def answer(self, page: str, query: Query) -> bytes:
        """The answer, as JSON; a ShardkeepError says what is wrong with the question."""
        if page not in self._pages:
            raise NotFoundError(f"there is no page {page[:40]!r}")
        return self._pages[page](query)

    def _home(self, query: Query) -> bytes:
        places = [
            {"id": one.id, "kind": one.kind, "name": one.name, "path": str(one.path)}
            for one in self._library.places
        ]
        return _json({"version": shardkeep.__version__, "places": places})

    def _run(self, query: Query) -> bytes:
        place = self._library.run(_text(query, "run"))
        return _json(run_page(place, self._library.shelf(place)))

    def _checkpoint(self, query: Query) -> bytes:
        at = _text(query, "at")
        with self._library.checkpoint(at) as opened:
            return self._once(
                ("checkpoint", at, opened.manifest.save_id),
                lambda: checkpoint_page(at, opened),
            )

    def _tensor(self, query: Query) -> bytes:
        from shardkeep.view.web.tensor_page import tensor_page

        with self._library.checkpoint(_text(query, "at")) as opened:
            return _json(tensor_page(opened, _text(query, "key")))

    def _values(self, query: Query) -> bytes:
        from shardkeep.view.web.values_page import values_page

        with self._library.checkpoint(_text(query, "at")) as opened, self._reading:
            return _json(values_page(opened, _text(query, "key"), whole="whole" in query))

    def _slice(self, query: Query) -> bytes:
        from shardkeep.view.web.values_page import slice_page

        with self._library.checkpoint(_text(query, "at")) as opened, self._reading:
            return _json(slice_page(opened, _text(query, "key"), query, most=self._slice_side))

    def _compare(self, query: Query) -> bytes:
        from shardkeep.view.web.compare_page import compare_page

        at, other = _text(query, "a"), _text(query, "b")
        pattern = query.get("key") or None
        library = self._library
        with library.checkpoint(at) as a, library.checkpoint(other) as b, self._comparing:
            ids = (a.manifest.save_id, b.manifest.save_id)
            return self._once(
                ("compare", at, other, *ids, pattern or ""), lambda: compare_page(a, b, pattern)
            )

    def _spread(self, query: Query) -> bytes:
        from shardkeep.view.web.compare_page import spread_page

        at, other = _text(query, "a"), _text(query, "b")
        library = self._library
        with library.checkpoint(at) as a, library.checkpoint(other) as b, self._reading:
            return _json(spread_page(a, b, _text(query, "key")))

    def _drift(self, query: Query) -> bytes:
        from shardkeep.view.web.compare_page import drift_page

        with self._comparing:
            return _json(drift_page(self._library, _text(query, "run"), _text(query, "key")))

    def _what_if(self, query: Query) -> bytes:
        from shardkeep.view.web.what_if_page import what_if_page

        shards = [one for one in query.get("shard", "").split() if one]
        with self._library.checkpoint(_text(query, "at")) as opened, self._reading:
            found = what_if_page(opened, _text(query, "mesh"), shards, query.get("key") or None)
            return _json(found)

    def _once(self, question: tuple[str, ...], make: Callable[[], Any]) -> bytes:
        """What was answered before, if the same was asked."""
        with suppress(KeyError):
            self._known.move_to_end(question)
            return self._known[question]
        found = self._known[question] = _json(make())
        while len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)
        return found


def _text(query: Query, name: str) -> str:
    if name not in query:
        raise InvalidError(f"the question lacks {name!r}")
    return query[name]


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value)

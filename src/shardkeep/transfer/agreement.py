"""What do the ranks of a save have to know of each other before they write?

Each rank's own view settles nearly everything. The agreement adds the rest, as little as there is:
the name of the attempt, who shares which view, and who writes what several views hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from shardkeep.layouts import Layout
from shardkeep.manifest import decode_runs, encode_runs
from shardkeep.plan import Entry, decode_view, encode_view
from shardkeep.plan.settle import SaveView, Settlement, ViewGroups, layouts_of_view

_MAX_RANKS = 2**24


@dataclass(frozen=True)
class Agreement:
    """The chair's word; the same on all ranks."""

    save_id: str
    file_count: int
    digests: Sequence[str]
    """Of the distinct views, by number."""
    ranks: Sequence[Sequence[int]]
    """Who shares each view."""
    shared: Mapping[tuple[int, ...], Sequence[str]]
    skipped: Mapping[int, Sequence[str]]
    listed: Mapping[str, Layout]
    sources: Mapping[ViewGroups, Sequence[str]]
    """Keys that several groups of views hold completely."""

    def number_of(self, digest: str) -> int:
        """The number of the view with this digest."""
        return list(self.digests).index(digest)

    def layouts(self, view: SaveView, digest: str) -> dict[str, Layout]:
        """What a rank with this view takes part in writing."""
        number = self.number_of(digest)
        skipped = self.skipped.get(number, ())
        return layouts_of_view(view, number, self.ranks, self.shared, skipped, self.listed)

    @property
    def is_plain(self) -> bool:
        """Whether all ranks share one view."""
        return len(self.digests) == 1


def make_agreement(
    save_id: str,
    file_count: int,
    digests: Sequence[str],
    ranks: Sequence[Sequence[int]],
    settlement: Settlement,
) -> Agreement:
    """What the ranks must hear of a settlement."""
    return Agreement(
        save_id,
        file_count,
        digests,
        ranks,
        settlement.shared,
        settlement.skipped,
        {key: settlement.layouts[key] for key in settlement.listed},
        settlement.sources,
    )


def encode_agreement(agreement: Agreement) -> bytes:
    """The agreement as JSON."""
    listed = {key: Entry("", layout.shape, layout) for key, layout in agreement.listed.items()}
    return msgspec.json.encode(
        {
            "save_id": agreement.save_id,
            "file_count": agreement.file_count,
            "views": [
                [digest, encode_runs(ranks)]
                for digest, ranks in zip(agreement.digests, agreement.ranks, strict=True)
            ],
            "shared": [[numbers, keys] for numbers, keys in agreement.shared.items()],
            "skipped": list(agreement.skipped.items()),
            "listed": msgspec.Raw(encode_view(listed)),
            "sources": list(agreement.sources.items()),
        }
    )


class _Note(msgspec.Struct):
    save_id: str
    file_count: int
    views: list[tuple[str, list[list[int]]]]
    shared: list[tuple[tuple[int, ...], list[str]]]
    skipped: list[tuple[int, list[str]]]
    listed: msgspec.Raw
    sources: list[tuple[ViewGroups, list[str]]]


def decode_agreement(data: bytes) -> Agreement:
    """The agreement that was encoded."""
    note = msgspec.json.decode(data, type=_Note)
    listed = decode_view(bytes(note.listed))
    return Agreement(
        note.save_id,
        note.file_count,
        [digest for digest, _ in note.views],
        [tuple(decode_runs(runs, limit=_MAX_RANKS)) for _, runs in note.views],
        dict(note.shared),
        dict(note.skipped),
        {key: entry.layout for key, entry in listed.items() if entry.layout is not None},
        dict(note.sources),
    )

"""Do the ranks agree on what is saved? Digests first, views only where they differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import msgspec

from shardkeep.errors import RanksDisagreeError, name_ranks
from shardkeep.layouts import Layout
from shardkeep.manifest import itemsize, new_save_id
from shardkeep.plan import Entry, digest_view
from shardkeep.plan.assign import Tensor, plan_divisions
from shardkeep.plan.divide import Division
from shardkeep.plan.settle import SaveView, Settlement, settle
from shardkeep.transfer.agreement import (
    Agreement,
    decode_agreement,
    encode_agreement,
    make_agreement,
)
from shardkeep.transfer.collecting import gc_paused
from shardkeep.transfer.council import Council
from shardkeep.transfer.outgoing import Outgoing, plan_outgoing
from shardkeep.transfer.view_codec import decode_save_view, encode_save_view

_K = TypeVar("_K")
_V = TypeVar("_V")

# Below this, a second file costs more than a second thread gains.
_MIN_NBYTES_FOR_FILES = 16 * 1024 * 1024


class _Report(msgspec.Struct):
    """What a rank tells the chair first."""

    digest: str
    nbytes: int
    """Of its memory: how much there is to write, roughly."""
    options: str
    """What must be the same on all ranks, as text."""


class Planning:
    """One rank's part in the agreement. On the chair, also what the chair does."""

    def __init__(self, view: SaveView, council: Council, *, nbytes: int, threads: int) -> None:
        self._view = view
        self._council = council
        self._nbytes = nbytes
        self._threads = threads
        with gc_paused():
            self._body = encode_save_view(view)
            self.digest = digest_view(self._body).hex()
        self.save_id = new_save_id()
        """On the chair: what the save will be called, once the others hear of it."""
        self.settlement: Settlement | None = None
        """On the chair: the checkpoint that all views make up."""

    def agree(self, options: str) -> Agreement:
        """The chair's word, after all ranks have reported."""
        council = self._council
        report = _Report(self.digest, self._nbytes, options)
        council.report("plan", msgspec.json.encode(report))
        if council.me == council.chair:
            self._ask_for_views()
        wanted = msgspec.json.decode(council.hear("plan"), type=list[int])
        if council.me in wanted:
            council.report("views", self._body)
        if council.me == council.chair:
            self._settle(wanted)
        return decode_agreement(council.hear("agree"))

    def _ask_for_views(self) -> None:
        """One rank of each distinct view hands it over; none if all share one."""
        notes = self._council.collect("plan")
        self._reports = {r: msgspec.json.decode(note, type=_Report) for r, note in notes.items()}
        self._require_same_options()
        self._ranks_of: dict[str, list[int]] = {}
        for rank, report in self._reports.items():
            self._ranks_of.setdefault(report.digest, []).append(rank)
        several = len(self._ranks_of) > 1
        wanted = [ranks[0] for ranks in self._ranks_of.values()] if several else []
        self._council.announce("plan", msgspec.json.encode(wanted))

    def _require_same_options(self) -> None:
        said: dict[str, list[int]] = {}
        for rank, report in self._reports.items():
            said.setdefault(report.options, []).append(rank)
        if len(said) > 1:
            lines = "; ".join(f"{name_ranks(ranks)}: {text}" for text, ranks in said.items())
            raise RanksDisagreeError(f"ranks save to different places or in other ways: {lines}")

    def _settle(self, wanted: Sequence[int]) -> None:
        views = {self.digest: self._view}
        if wanted:
            for rank, body in self._council.collect("views", wanted).items():
                views[self._reports[rank].digest] = decode_save_view(body)
        self.settlement = _settled(views, self._ranks_of)
        largest = max(report.nbytes for report in self._reports.values())
        agreement = make_agreement(
            self.save_id,
            self._threads if largest >= _MIN_NBYTES_FOR_FILES else 1,
            list(self._ranks_of),
            list(self._ranks_of.values()),
            self.settlement,
        )
        self._council.announce("agree", encode_agreement(agreement))


_settlements: dict[object, Settlement] = {}
_MAX_SETTLEMENTS = 2


def _settled(views: Mapping[str, SaveView], ranks_of: Mapping[str, Sequence[int]]) -> Settlement:
    """What the views come to, taken from the last save that had the same ones."""
    key = tuple((digest, tuple(ranks)) for digest, ranks in ranks_of.items())

    def make() -> Settlement:
        with gc_paused():
            return settle([(views[digest], ranks) for digest, ranks in ranks_of.items()])

    return _kept(_settlements, key, make, _MAX_SETTLEMENTS)


def tensors_to_write(
    entries: Mapping[str, Entry], layouts: Mapping[str, Layout]
) -> dict[str, Tensor]:
    """What `plan_divisions` needs to know; of tensors alike, one object."""
    known: dict[tuple[int, str], Tensor] = {}
    found: dict[str, Tensor] = {}
    for key, layout in layouts.items():
        alike = id(layout), entries[key].dtype
        if alike not in known:
            known[alike] = Tensor(layout, itemsize(alike[1]))
        found[key] = known[alike]
    return found


_PlanKey = tuple[str, int, tuple[int, ...]]
_divided: dict[_PlanKey, dict[str, Division]] = {}
_MAX_DIVIDED = 8
_outgoing: dict[tuple[_PlanKey, int], Outgoing] = {}
_MAX_OUTGOING = 2


def divisions_of(
    entries: Mapping[str, Entry],
    layouts: Mapping[str, Layout],
    agreement: Agreement,
    digest: str,
) -> dict[str, Division]:
    """The plan, taken from the last save with the same view if all ranks share one."""

    def make() -> dict[str, Division]:
        tensors = tensors_to_write(entries, layouts)
        return plan_divisions(tensors, file_count=agreement.file_count)

    if not agreement.is_plain:
        return make()
    return _kept(_divided, _plan_key(agreement, digest), make, _MAX_DIVIDED)


def outgoing_of(
    entries: Mapping[str, Entry],
    layouts: Mapping[str, Layout],
    agreement: Agreement,
    digest: str,
    me: int,
) -> Outgoing:
    """What `me` writes, taken from the last save with the same view if all ranks share one."""

    def make() -> Outgoing:
        return plan_outgoing(entries, divisions_of(entries, layouts, agreement, digest), me)

    if not agreement.is_plain:
        return make()
    return _kept(_outgoing, (_plan_key(agreement, digest), me), make, _MAX_OUTGOING)


def _plan_key(agreement: Agreement, digest: str) -> _PlanKey:
    return digest, agreement.file_count, tuple(agreement.ranks[0])


def _kept(known: dict[_K, _V], key: _K, make: Callable[[], _V], limit: int) -> _V:
    """What is known of `key`, or is made now; only so many are known at a time."""
    found = known.get(key)
    if found is None:
        while len(known) >= limit:
            known.pop(next(iter(known)), None)
        found = known[key] = make()
    return found

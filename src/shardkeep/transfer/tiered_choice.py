"""Which step is restored when each host has a disk of its own? The newest that is whole somewhere.

The first rank of each host tells what the host has, every rank which copies it found damaged. The
chair puts it together with the slow tier and says which step it is and where its files are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec

from shardkeep.manifest import file_name
from shardkeep.plan.retention import Best
from shardkeep.storage.shelf import LocalShelf
from shardkeep.transfer.choose import Choice, Chooser, Wish, outcome_of
from shardkeep.transfer.council import Council
from shardkeep.transfer.hosts import Hosts
from shardkeep.transfer.inventory import (
    HeldSave,
    Inventory,
    Located,
    Save,
    held_saves,
    local_manifest,
    locate,
)
from shardkeep.transfer.steps import StepRecord


class BadCopy(msgspec.Struct, frozen=True, array_like=True):
    """A file that a load found damaged."""

    step: int
    name: str
    in_slow: bool


class _Said(msgspec.Struct, array_like=True):
    """What a rank tells the chair."""

    outcome: str
    bad: list[BadCopy]
    held: list[HeldSave]


@dataclass(frozen=True, slots=True)
class Found:
    """The same on all ranks."""

    choice: Choice
    located: Located | None
    manifest: bytes | None
    """If files of it are on hosts."""
    bad_count: int
    """How many copies are known to be damaged, of all ranks together."""


class TieredChoice:
    """One rank's part in the choice."""

    def __init__(
        self,
        council: Council,
        hosts: Hosts,
        shelf: LocalShelf,
        read_slow: Callable[[], Sequence[StepRecord]],
    ) -> None:
        self._council = council
        self._hosts = hosts
        self._shelf = shelf
        self._read_slow = read_slow
        self._is_chair = council.me == council.chair

    def run(self, wish: Wish, best: Best | None, bad: Sequence[BadCopy], known_bad: int) -> Found:
        """The chair's choice. So many copies were known to be bad when it chose before."""
        try:
            found = self._run(wish, best, bad, known_bad)
        except BaseException as error:
            self._council.fail("restore", error, undone=True)
            self._council.leave(done=False)
            raise
        self._council.leave(done=True)
        return found

    def _run(self, wish: Wish, best: Best | None, bad: Sequence[BadCopy], known_bad: int) -> Found:
        council = self._council
        held = held_saves(self._shelf) if self._hosts.leads else []
        said = _Said(outcome_of(wish.last_error), list(bad), held)
        council.report("choose", msgspec.msgpack.encode(said))
        if self._is_chair:
            self._choose(wish, best, known_bad)
        else:
            self._answer()
        form = tuple[Choice, Located | None, int]
        choice, located, count = msgspec.msgpack.decode(council.hear("choose"), type=form)
        if located is None or not located.hosts_with:
            return Found(choice, located, None, count)
        manifest = local_manifest(self._shelf, located.step, located.save_id)
        return Found(choice, located, manifest or council.hear("manifest"), count)

    def _answer(self) -> None:
        """Hand over the manifests that the chair asks this rank for."""
        heard = self._council.hear("asked")
        asked = msgspec.msgpack.decode(heard, type=dict[int, list[Save]]).get(self._council.me)
        if asked:
            found = [local_manifest(self._shelf, *save) for save in asked]
            self._council.report("asked", msgspec.msgpack.encode(found))

    def _choose(self, wish: Wish, best: Best | None, known_bad: int) -> None:
        notes = self._council.collect("choose")
        said = {rank: msgspec.msgpack.decode(note, type=_Said) for rank, note in notes.items()}
        inventory = self._inventory(said)
        manifests = self._manifests(inventory)
        bad = {one for each in said.values() for one in each.bad}
        spoilt = {one.step for one in bad if one.in_slow}
        slow = [
            replace(one, condition="damaged", problem="a file of it is damaged")
            if one.step in spoilt and one.condition == "committed"
            else one
            for one in self._read_slow()
        ]
        records, located, lost = locate(inventory, manifests, slow)
        if len(bad) > known_bad:
            # Another copy may do: the step is not given up yet.
            last = next(reversed(wish.tried), None)
            wish = replace(wish, tried={n: e for n, e in wish.tried.items() if n != last})
        choice = Chooser(records, wish, best).choose({one.outcome for one in said.values()})
        choice = msgspec.structs.replace(choice, warnings=(*choice.warnings, *lost))
        place = located.get(choice.step) if choice.step is not None else None
        if place is not None and place.hosts_with:
            self._council.announce("manifest", manifests[place.step, place.save_id])
        self._council.announce("choose", msgspec.msgpack.encode((choice, place, len(bad))))

    def _inventory(self, said: dict[int, _Said]) -> Inventory:
        found = Inventory()
        for rank, one in said.items():
            host = self._hosts.number_of[rank]
            mates = self._hosts.ranks_on(host)
            bad = {(b.step, b.name) for mate in mates for b in said[mate].bad if not b.in_slow}
            found.add(host, [_without(held, bad) for held in one.held])
        return found

    def _manifests(self, inventory: Inventory) -> dict[Save, bytes]:
        """The manifest of every save that a host has one of."""
        found: dict[Save, bytes] = {}
        asked: dict[int, list[Save]] = {}
        for save, hosts in inventory.manifests.items():
            mine = local_manifest(self._shelf, *save) if self._hosts.mine in hosts else None
            if mine is not None:
                found[save] = mine
            else:
                others = [host for host in hosts if host != self._hosts.mine]
                for host in others[:1]:
                    asked.setdefault(self._hosts.ranks_on(host)[0], []).append(save)
        self._council.announce("asked", msgspec.msgpack.encode(asked))
        if not asked:
            return found
        for rank, note in self._council.collect("asked", list(asked)).items():
            answers = msgspec.msgpack.decode(note, type=list[bytes | None])
            found |= {s: a for s, a in zip(asked[rank], answers, strict=True) if a is not None}
        return found


def _without(held: HeldSave, bad: set[tuple[int, str]]) -> HeldSave:
    """What is left of it when the bad files do not count."""
    files = [
        file
        for file in held.files
        if (held.step, file_name(held.save_id, file[0], file[1])) not in bad
    ]
    return HeldSave(held.step, held.save_id, held.has_manifest, files)

"""What do the values of a checkpoint look like, and how do two checkpoints differ?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from shardkeep.errors import NotFoundError
from shardkeep.transfer.opened import Opened
from shardkeep.transfer.progress import Meter
from shardkeep.transfer.team import Team
from shardkeep.view.keys import keys_of
from shardkeep.view.pieces import Batch, PieceReader, plan_batches, run_all
from shardkeep.view.values import Change, Stats

StatsByKey = dict[str, Stats]
Changes = dict[str, Change]


def all_stats(opened: Opened, keys: Sequence[str], team: Team) -> StatsByKey | None:
    """The statistics of tensors; None on ranks that do not lead."""
    parts = team.gather("show", lambda: _own_stats(opened, keys, team), StatsByKey)
    if parts is None:
        return None
    found = {key: Stats() for key in keys}
    for part in parts:
        for key, stats in part.items():
            found[key].join(stats)
    return found


def _own_stats(opened: Opened, keys: Sequence[str], team: Team) -> StatsByKey:
    batches = plan_batches(opened, keys)
    mine = team.share(batches, [batch.nbytes for batch in batches])
    reader = PieceReader(opened)
    acts = [partial(_batch_stats, reader, batch) for batch in mine]
    nbytes = sum(batch.nbytes for batch in mine)
    found: StatsByKey = {}
    for part in run_all(
        acts, nbytes, "reading", show=team.shows, threads=team.threads, kind=list[tuple[str, Stats]]
    ):
        for key, stats in part:
            found.setdefault(key, Stats()).join(stats)
    return found


def _batch_stats(reader: PieceReader, batch: Batch, meter: Meter) -> list[tuple[str, Stats]]:
    found: list[tuple[str, Stats]] = []
    for (record, _), bits in zip(batch.pieces, reader.read(batch.pieces), strict=True):
        stats = Stats()
        stats.add(bits, record.dtype)
        found.append((record.key, stats))
    meter.add(batch.nbytes)
    return found


@dataclass(frozen=True, slots=True)
class Difference:
    """What two checkpoints have not in common."""

    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    other_kind: tuple[str, ...]
    """Shapes or dtypes that differ, in words."""
    changes: tuple[Change, ...]
    """Tensors whose values differ, the largest change first."""
    equal: int

    def __bool__(self) -> bool:
        return bool(self.only_a or self.only_b or self.other_kind or self.changes)


def difference(a: Opened, b: Opened, pattern: str | None, team: Team) -> Difference | None:
    """How two checkpoints differ; None on ranks that do not lead.

    Values are compared wherever shapes allow.
    """
    keys_a, keys_b = _keys_of_both(a, b, pattern)
    shared = [key for key in keys_a if key in keys_b]
    kinds, comparable = _kinds(a, b, shared)
    parts = team.gather("diff", lambda: _own_changes(a, b, comparable, team), Changes)
    if parts is None:
        return None
    found = {key: Change(key) for key in comparable}
    for part in parts:
        for key, change in part.items():
            found[key].join(change)
    differ = sorted((c for c in found.values() if c.changed), key=lambda c: (-c.most, c.key))
    return Difference(
        tuple(sorted(keys_a.keys() - keys_b)),
        tuple(sorted(keys_b.keys() - keys_a)),
        tuple(kinds),
        tuple(differ),
        len(comparable) - len(differ),
    )


def _keys_of_both(
    a: Opened, b: Opened, pattern: str | None
) -> tuple[dict[str, None], dict[str, None]]:
    """The keys that are meant, in order; at least one of the two must have some."""
    found: list[dict[str, None]] = []
    missing: list[NotFoundError] = []
    for one in (a, b):
        try:
            found.append(dict.fromkeys(keys_of(one.manifest, pattern)))
        except NotFoundError as error:
            found.append({})
            missing.append(error)
    if len(missing) == 2:
        raise missing[0]
    return found[0], found[1]


def _kinds(a: Opened, b: Opened, keys: Sequence[str]) -> tuple[list[str], list[str]]:
    """What differs in shape or dtype, in words; and the keys whose values can be compared."""
    said: list[str] = []
    comparable: list[str] = []
    for key in keys:
        one, other = a.manifest.tensor(key), b.manifest.tensor(key)
        if one.shape != other.shape:
            said.append(f"{key}: shape {list(one.shape)}, {list(other.shape)}")
            continue
        if one.dtype != other.dtype:
            said.append(f"{key}: dtype {one.dtype}, {other.dtype}")
        comparable.append(key)
    return said, comparable


def _own_changes(a: Opened, b: Opened, keys: Sequence[str], team: Team) -> Changes:
    batches = plan_batches(a, keys)
    b.places.fetch(range(len(b.manifest.files)), threads=2)
    mine = team.share(batches, [batch.nbytes for batch in batches])
    readers = PieceReader(a), PieceReader(b)
    acts = [partial(_batch_changes, readers, b, batch) for batch in mine]
    nbytes = sum(2 * batch.nbytes for batch in mine)
    found: Changes = {}
    for part in run_all(
        acts, nbytes, "comparing", show=team.shows, threads=team.threads, kind=list[Change]
    ):
        for change in part:
            found.setdefault(change.key, Change(change.key)).join(change)
    return found


def _batch_changes(
    readers: tuple[PieceReader, PieceReader], b: Opened, batch: Batch, meter: Meter
) -> list[Change]:
    others = [(b.manifest.tensor(record.key), box) for record, box in batch.pieces]
    found: list[Change] = []
    for (one, _), x, (other, _), y in zip(
        batch.pieces, readers[0].read(batch.pieces), others, readers[1].read(others), strict=True
    ):
        change = Change(one.key)
        change.add(x, y, (one.dtype, other.dtype))
        found.append(change)
    meter.add(2 * batch.nbytes)
    return found

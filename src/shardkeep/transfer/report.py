"""How did a save go, rank by rank? Kept beside the checkpoint, for people and tools to look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgspec

from shardkeep.errors import ShardkeepError
from shardkeep.manifest import report_name
from shardkeep.storage import Storage
from shardkeep.storage.protocols import CanGet

_MAX_NBYTES = 64 * 2**20
_VERSION = 1


class SaveReport(msgspec.Struct, frozen=True):
    """What each rank wrote and how long its phases took. Columns have a place for each rank."""

    save_id: str
    ranks: list[int]
    hosts: list[str]
    """The distinct ones."""
    host_of: list[int]
    """For each rank, the place of its host in `hosts`."""
    nbytes: list[int]
    """Of the rank's files."""
    seconds: dict[str, list[float]]
    """By phase: stage (async only), plan, write."""
    commit_seconds: float
    """From the last rank's report to the manifest in its place."""
    version: int = _VERSION


class RankTimes(msgspec.Struct, frozen=True):
    """What one rank says of its part."""

    host: str
    nbytes: int
    seconds: dict[str, float]


def make_report(save_id: str, said: Mapping[int, RankTimes], commit_seconds: float) -> SaveReport:
    """The report of all ranks together."""
    ranks = sorted(said)
    hosts = sorted({one.host for one in said.values()})
    number = {host: index for index, host in enumerate(hosts)}
    phases = dict.fromkeys(phase for rank in ranks for phase in said[rank].seconds)
    return SaveReport(
        save_id,
        ranks,
        hosts,
        [number[said[rank].host] for rank in ranks],
        [said[rank].nbytes for rank in ranks],
        {p: [round(said[rank].seconds.get(p, 0.0), 4) for rank in ranks] for p in phases},
        round(commit_seconds, 4),
    )


def write_report(storage: Storage, report: SaveReport) -> None:
    """Keep it if that is possible: the checkpoint stands without it."""
    with suppress(Exception), storage.create(report_name(report.save_id)) as sink:
        sink.write(0, [msgspec.json.encode(report)])


def read_report(storage: CanGet, save_id: str) -> SaveReport | None:
    """What was kept of a save; None if there is nothing, or nothing that can be read."""
    try:
        data = storage.get(report_name(save_id), max_nbytes=_MAX_NBYTES)
        found = msgspec.json.decode(data, type=SaveReport)
    except (ShardkeepError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    columns: Sequence[Sequence[object]] = [found.host_of, found.nbytes, *found.seconds.values()]
    whole = all(len(column) == len(found.ranks) for column in columns)
    return found if whole and found.version == _VERSION and found.save_id == save_id else None

"""What do the ranks of a save tell the chair, and what does it tell them?"""

from __future__ import annotations

import msgspec

from shardkeep.transfer.report import RankTimes


class Wrote(msgspec.Struct):
    """What a rank tells the chair when its files are durable."""

    files: list[tuple[int, int, int, int]]
    replicas: list[tuple[str, str]]
    sources: dict[int, int]
    times: RankTimes
    host_key: str
    """Tells hosts of the same name apart."""


class Outcome(msgspec.Struct):
    """What the chair tells all at the end."""

    total_nbytes: int
    explain: list[int]
    """Ranks that must say in detail what they hold; empty once committed."""

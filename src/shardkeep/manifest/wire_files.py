"""Which JSON fields does a manifest have for its files?"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from shardkeep.errors import CorruptError
from shardkeep.manifest.digests import Digests
from shardkeep.manifest.files import FileTable
from shardkeep.manifest.limits import MAX_FILES
from shardkeep.manifest.runs import Run, Runs, decode_runs


class WireFiles(msgspec.Struct, forbid_unknown_fields=True):
    """The data files as columns."""

    rank: Sequence[Run]
    number: Sequence[Run]
    nbytes: Sequence[Run]
    header_nbytes: Sequence[Run]
    header_digests: str


def files_of(wire: WireFiles) -> FileTable:
    """The table that the columns stand for."""
    return FileTable(
        runs_of(wire.rank, "files.rank", MAX_FILES),
        runs_of(wire.number, "files.number", MAX_FILES),
        runs_of(wire.nbytes, "files.nbytes", MAX_FILES),
        runs_of(wire.header_nbytes, "files.header_nbytes", MAX_FILES),
        Digests.from_hex(wire.header_digests),
    )


def runs_of(data: Sequence[Run], what: str, limit: int) -> Runs:
    """The numbers that runs stand for, with a name for the message."""
    try:
        return decode_runs(data, limit=limit)
    except CorruptError as error:
        raise CorruptError(f"{what}: {error}") from None

"""What does a list of checkpoints need of a manifest, and how is that read without the rest?

The digest speaks for the whole file. Tensors, grids and the tree are passed over: of a large
model they take far longer to read than all that a list shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from shardkeep.errors import CorruptError, InvalidError
from shardkeep.manifest.canonical import brief, check_density, with_fresh_stack
from shardkeep.manifest.file_checks import check_files
from shardkeep.manifest.files import FileTable
from shardkeep.manifest.head import check_head
from shardkeep.manifest.names import file_name
from shardkeep.manifest.plain_json import Json
from shardkeep.manifest.wire_files import WireFiles, files_of


class _WireSummary(msgspec.Struct):
    save_id: str
    world: int
    files: WireFiles
    metadata: dict[str, Json]


_decoder = msgspec.json.Decoder(_WireSummary)


@dataclass(frozen=True, slots=True)
class Summary:
    """A checkpoint's files, and what its user says of it."""

    save_id: str
    world: int
    files: FileTable
    metadata: Mapping[str, Json]

    def file_name(self, index: int) -> str:
        """The name of the file with this index."""
        return file_name(self.save_id, self.files.ranks[index], self.files.numbers[index])


def decode_summary(data: bytes, *, where: str) -> Summary:
    """The summary of the manifest that was stored in `where`.

    Raises CorruptError if the manifest is damaged, and VersionError if it was written by a newer
    shardkeep. Whether tensors, grids and tree obey the format is left to `decode_manifest`.
    """
    try:
        check_head(data, where)
        check_density(data)
        wire = with_fresh_stack(lambda: _decoder.decode(data))
        summary = Summary(wire.save_id, wire.world, files_of(wire.files), wire.metadata)
        check_files(summary.files, summary.world)
    except (CorruptError, InvalidError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptError(f"{where}: {brief(error)}") from error
    return summary

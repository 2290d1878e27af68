"""What is a checkpoint to those who read it, whatever its format?

What it holds is a manifest, and `Places` say where in its files the bytes lie. Foreign formats
are read by the same code: they come as a manifest and places of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from shardkeep.boxes import Box
from shardkeep.manifest import Manifest, Node, StoredEntry, TensorRecord
from shardkeep.storage import Storage
from shardkeep.storage.protocols import CanGet, CanReadInto
from shardkeep.transfer.open_manifest import Chunks, Headers, read_manifest
from shardkeep.transfer.progress import Meter
from shardkeep.transfer.read import OpenFile


class Places(Protocol):
    """Where the chunks of tensors lie in the files, which go by their index in the manifest."""

    def fetch(self, indices: Iterable[int], *, threads: int) -> None:
        """Read what is needed to know the places in these files, several at once."""
        ...

    def chunk(self, index: int, record: TensorRecord, box: Box) -> StoredEntry:
        """Where in a file a box of a tensor lies; CorruptError if it is not there as listed."""
        ...

    def starts(self, index: int, records: Sequence[TensorRecord], box: Box) -> list[int]:
        """Where in a file a box of each of many tensors alike starts; as `chunk`."""
        ...

    def open_file(self, index: int) -> OpenFile:
        """The file as a reader needs it."""
        ...

    def damage(self, index: int, chunks: Chunks, meter: Meter) -> list[str]:
        """What is wrong with a file that should hold these chunks; reads every byte of it."""
        ...

    def own_values(self, index: int) -> Mapping[str, Node]:
        """The values of its writer's own that a file holds."""
        ...


class Files(CanReadInto, CanGet, Protocol):
    """What is used of a storage."""

    @property
    def location(self) -> str: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Opened:
    """A checkpoint at one moment."""

    storage: Files
    manifest: Manifest
    places: Places
    newest_id: Callable[[], str]
    """What the save's id is by now: others may replace the checkpoint."""

    @property
    def is_replaced(self) -> bool:
        """Whether another save has taken the checkpoint's place meanwhile."""
        return self.newest_id() != self.manifest.save_id


def open_committed(storage: Storage) -> Opened:
    """The checkpoint that was committed to a storage; NotFoundError if none was."""
    manifest = read_manifest(storage)
    return Opened(
        storage, manifest, Headers(storage, manifest), lambda: read_manifest(storage).save_id
    )

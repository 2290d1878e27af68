"""What does a checkpoint hold, and where are its bytes? Manifest and headers, read and checked."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from shardkeep.boxes import Box
from shardkeep.errors import CorruptError, NotFoundError, StorageError
from shardkeep.manifest import (
    Header,
    Manifest,
    Node,
    StoredEntry,
    TensorRecord,
    decode_listed_header,
    decode_manifest,
)
from shardkeep.manifest.limits import MAX_MANIFEST_NBYTES
from shardkeep.plan.reads import WindowRead
from shardkeep.storage.protocols import CanFetch
from shardkeep.transfer.collecting import gc_paused
from shardkeep.transfer.commit import MANIFEST
from shardkeep.transfer.progress import Meter
from shardkeep.transfer.read import FileReads, OpenFile, Reader, in_flight, read_good


class ReadStorage(Protocol):
    """What is used of a storage."""

    @property
    def location(self) -> str: ...
    def read(self, key: str, offset: int, nbytes: int) -> bytes: ...
    def get(self, key: str, *, max_nbytes: int) -> bytes: ...
    def size(self, key: str) -> int: ...
    def read_into(self, key: str, offset: int, buffers: Sequence[Any]) -> None: ...


Chunks = Sequence[tuple[TensorRecord, Box]]
"""Stored boxes of tensors."""

_VERIFY_NBYTES = 8 * 1024 * 1024


def read_manifest(storage: ReadStorage) -> Manifest:
    """The checked manifest; NotFoundError if nothing was committed there."""
    try:
        # In one go: between its size and its bytes another save might replace it.
        data = storage.get(MANIFEST, max_nbytes=MAX_MANIFEST_NBYTES)
    except NotFoundError as error:
        raise NotFoundError(
            f"{storage.location} holds no checkpoint: there is no {MANIFEST}. A save that was "
            "broken off leaves none; check the path, or take another step"
        ) from error
    with gc_paused():
        return decode_manifest(data, where=f"{storage.location}/{MANIFEST}")


class Headers:
    """The headers of a checkpoint's files, each read when it is first needed."""

    def __init__(self, storage: ReadStorage, manifest: Manifest) -> None:
        self._storage = storage
        self._manifest = manifest
        self._headers: dict[int, Header] = {}
        self._names: dict[int, str] = {}
        self._lock = threading.Lock()

    def fetch(self, indices: Iterable[int], *, threads: int) -> None:
        """Read the headers of these files, several at once."""
        threads = max(threads, in_flight(self._storage))
        missing = self.missing(indices)
        if len(missing) <= 1 or threads == 1:
            for index in missing:
                self._keep(index, self._read(index))
            return
        with ThreadPoolExecutor(threads, "shardkeep-open") as pool:
            for index, header in zip(missing, pool.map(self._read, missing), strict=True):
                self._keep(index, header)

    def __getitem__(self, index: int) -> Header:
        if index not in self._headers:
            self.fetch([index], threads=1)
        return self._headers[index]

    def chunk(self, index: int, record: TensorRecord, box: Box) -> StoredEntry:
        """Where in a file a box of a tensor lies; CorruptError if it is not there as listed."""
        return self[index].chunk(record, box, where=self.name(index))

    def starts(self, index: int, records: Sequence[TensorRecord], box: Box) -> list[int]:
        """Where in a file a box of each of many tensors alike starts; as `chunk`."""
        return self[index].starts(records, box, where=self.name(index))

    def name(self, index: int) -> str:
        """The name of a file."""
        name = self._names.get(index)
        if name is None:
            name = self._names[index] = self._manifest.file_name(index)
        return name

    def _keep(self, index: int, header: Header) -> None:
        with self._lock:
            self._headers[index] = header

    def _read(self, index: int) -> Header:
        return self.read_both(index)[0]

    def read_both(self, index: int) -> tuple[Header, bytes]:
        """The checked header of a file, and its bytes."""
        record, name = self._manifest.files[index], self._manifest.file_name(index)

        def read() -> tuple[Header, bytes]:
            data, nbytes = self._start(name, record.header_nbytes)
            return self._decoded(index, data, nbytes), data

        return read_good(self._storage, name, read)

    def _start(self, name: str, header_nbytes: int) -> tuple[bytes, int]:
        """The header's bytes, as far as they are there, and the file's size."""
        if isinstance(self._storage, CanFetch):
            return self._storage.read_start(name, header_nbytes)
        nbytes = self._storage.size(name)
        # A file that was cut off is told by its size, before bytes that it lacks are read.
        return self._storage.read(name, 0, min(header_nbytes, nbytes)), nbytes

    def take(self, index: int, data: bytes) -> None:
        """Keep a header whose bytes another rank read, once it is checked here, too."""
        self._keep(index, self._decoded(index, data, self._manifest.files[index].nbytes))

    def missing(self, indices: Iterable[int]) -> list[int]:
        """Those of the files whose headers are not here yet."""
        return [index for index in indices if index not in self._headers]

    def _decoded(self, index: int, data: bytes, file_nbytes: int) -> Header:
        name = self._manifest.file_name(index)
        with gc_paused():
            return decode_listed_header(
                data, manifest=self._manifest, index=index, file_nbytes=file_nbytes, where=name
            )

    def own_values(self, index: int) -> Mapping[str, Node]:
        """The values of its writer's own that a file holds."""
        return self[index].per_rank

    def open_file(self, index: int) -> OpenFile:
        """The file as a reader needs it."""
        header, record = self[index], self._manifest.files[index]
        return OpenFile(
            self._manifest.file_name(index),
            record.header_nbytes,
            record.nbytes,
            header.block_nbytes,
            header.digests,
            _Names(header).within,
        )

    def damage(self, index: int, chunks: Chunks, meter: Meter) -> list[str]:
        """What is wrong with a file that should hold these chunks; reads every byte of it."""
        try:
            file = self.open_file(index)
            for record, box in chunks:
                self.chunk(index, record, box)
        except (CorruptError, NotFoundError, StorageError) as error:
            return [str(error)]
        problems: list[str] = []
        reader = Reader(self._storage, threads=1, verify=True, meter=meter)
        step = max(file.block_nbytes, _VERIFY_NBYTES - _VERIFY_NBYTES % file.block_nbytes)
        for start in range(file.data_start, file.nbytes, step):
            window = WindowRead(start, min(start + step, file.nbytes), ())
            try:
                reader.run([FileReads(file, [window], [])])
            except (CorruptError, StorageError) as error:
                problems.append(str(error))
        return problems


class _Names:
    """The entries of a file by where they lie."""

    def __init__(self, header: Header) -> None:
        self._header = header

    def within(self, start: int, stop: int) -> str:
        """The names of the entries that lie in a byte range, the first few."""
        entries = sorted(self._header.entries.items(), key=lambda item: item[1].start)
        starts: Sequence[int] = [entry.start for _, entry in entries]
        stops: Sequence[int] = [entry.stop for _, entry in entries]
        found = entries[bisect_right(stops, start) : bisect_left(starts, stop)]
        names = [repr(name) for name, _ in found[:3]]
        return ", ".join(names) + (f" and {len(found) - 3} more" if len(found) > 3 else "")

"""How is a folder of torch DCP read? In place, like a checkpoint of ours, each rank its slices.

Each chunk is an archive of torch.save within a file. Its directory is read when the chunk is
first wanted, and tells where the bytes lie; these are read like any others. Torch is imported
only for values that are no tensors.
"""

from __future__ import annotations

import io
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from shardkeep.boxes import Box
from shardkeep.errors import (
    CorruptError,
    InvalidError,
    NotFoundError,
    ShardkeepError,
    UnsupportedError,
)
from shardkeep.manifest import Manifest, Node, StoredEntry, TensorRecord, itemsize
from shardkeep.plan.merge_trees import relabel
from shardkeep.storage import LocalStorage
from shardkeep.transfer.collecting import gc_paused
from shardkeep.transfer.load import BIT_DTYPES
from shardkeep.transfer.open_manifest import Chunks
from shardkeep.transfer.opened import Opened
from shardkeep.transfer.progress import Meter
from shardkeep.transfer.read import OpenFile
from shardkeep.translate.dcp_metadata import (
    MAX_METADATA_NBYTES,
    DcpMetadata,
    Item,
    read_metadata,
)
from shardkeep.translate.dcp_tree import build_tree
from shardkeep.translate.foreign import ForeignChunk, ForeignTensor, open_foreign
from shardkeep.translate.plain_values import check_archive, check_loaded
from shardkeep.translate.torch_archive import Archive, TensorBytes

METADATA_FILE = ".metadata"
VALUES_FILE = "values of .metadata"
"""Goes for a file: the tensors within values, which are read when the folder is opened."""

_MAX_VALUE_NBYTES = 2**30
# Reads of places that are further apart are never joined.
_APART_NBYTES = 2**20
_KEPT_COPIES = 4


def open_dcp(path: Path, *, values: bool) -> Opened:
    """The checkpoint in a folder of DCP. Without `values` only its tensors, and no torch."""
    storage = LocalStorage(path)
    try:
        data = storage.get(METADATA_FILE, max_nbytes=MAX_METADATA_NBYTES)
        with gc_paused():
            metadata = read_metadata(data, where=f"{storage.location}/{METADATA_FILE}")
            return _opened(DcpFiles(storage), metadata, values)
    except BaseException:
        storage.close()
        raise


def _opened(files: DcpFiles, metadata: DcpMetadata, values: bool) -> Opened:
    where = f"{files.location}/{METADATA_FILE}"
    tensors = [
        ForeignTensor(
            key,
            tensor.dtype,
            tensor.shape,
            [ForeignChunk(box, item.file, item.offset) for box, item in tensor.chunks],
        )
        for key, tensor in metadata.tensors.items()
    ]
    _require_whole(files, metadata)
    found = _Values(files, len(tensors)).read(metadata) if values else _NO_VALUES
    opened = open_foreign(
        files,
        [*tensors, *found.tensors],
        format="dcp",
        damage=lambda name, meter: [],
        tree=lambda nodes: build_tree(
            {key: nodes[key] for key in metadata.tensors}
            | {key: nodes[other] for key, other in metadata.tied.items()}
            | dict(found.nodes),
            metadata.paths,
            where=where,
            has_values=values,
        ),
    )
    return replace(opened, places=DcpPlaces(files, opened.manifest, metadata, found.tensors))


def _require_whole(files: DcpFiles, metadata: DcpMetadata) -> None:
    """Every file is there and as long as the metadata say, and every byte is claimed once.

    So what all tensors take together is no more than what lies in the files.
    """
    placed = [(item.file, item.offset, item.nbytes, key) for key, item in _items(files, metadata)]
    placed.sort()
    for (name, start, nbytes, key), (following, place, _, other) in pairwise(placed):
        if name == following and place < start + nbytes:
            raise CorruptError(
                f"{files.location}/{name}: {key!r} and {other!r} share the bytes from {place} on; "
                "no save writes such a file: take another copy"
            )
    ends = {name: (start + nbytes, key) for name, start, nbytes, key in placed}
    for name, (end, key) in ends.items():
        try:
            nbytes = files.size(name)
        except NotFoundError:
            raise NotFoundError(
                f"{files.location} lacks the file {name!r}, which holds {key!r}; copy it there, too"
            ) from None
        if nbytes < end:
            raise CorruptError(
                f"{files.location}/{name} has {nbytes} bytes, but {key!r} ends at {end}: the file "
                "was cut off; take another copy"
            )


def _items(files: DcpFiles, metadata: DcpMetadata) -> Iterator[tuple[str, Item]]:
    for key, tensor in metadata.tensors.items():
        size = itemsize(tensor.dtype)
        for box, item in tensor.chunks:
            if box.numel * size > item.nbytes:
                raise CorruptError(
                    f"{files.location}/{METADATA_FILE} lists {item.nbytes} bytes for {box} of "
                    f"{key!r}, which takes {box.numel * size}; take another copy"
                )
            yield key, item
    yield from metadata.objects.items()


class DcpFiles:
    """The folder's files. What does not lie in them row by row is shown as if it did.

    A tensor whose items are stored in another order appears behind the end of its file: it is put
    in order when it is read.
    """

    def __init__(self, storage: LocalStorage) -> None:
        self._storage = storage
        self._behind: dict[str, dict[int, tuple[TensorBytes, int]]] = {}
        """By file: tensors by the place where they appear, with their archives' places."""
        self._copies: OrderedDict[tuple[str, int], Any] = OrderedDict()
        self._lock = threading.Lock()
        self._values = b""

    @property
    def location(self) -> str:
        return self._storage.location

    def keep_values(self, data: bytes) -> None:
        """The bytes of tensors that lie within values."""
        self._values = data

    def size(self, key: str) -> int:
        return len(self._values) if key == VALUES_FILE else self._storage.size(key)

    def get(self, key: str, *, max_nbytes: int) -> bytes:
        return self._storage.get(key, max_nbytes=max_nbytes)

    def read(self, key: str, offset: int, nbytes: int) -> bytes:
        return self._storage.read(key, offset, nbytes)

    def map(self, key: str) -> memoryview:
        return memoryview(self._values) if key == VALUES_FILE else self._storage.map(key)

    def read_into(self, key: str, offset: int, buffers: Sequence[Any]) -> None:
        behind = self._found_behind(key, offset)
        if key == VALUES_FILE:
            _fill(buffers, memoryview(self._values)[offset:])
        elif behind is not None:
            start, copy = behind
            _fill(buffers, memoryview(copy)[offset - start :])
        else:
            self._storage.read_into(key, offset, buffers)

    def end(self, key: str) -> int:
        """Where the last of what appears in a file, or behind it, ends."""
        known = self._behind.get(key)
        if not known:
            return self.size(key)
        last = max(known)
        return last + _nbytes(known[last][0])

    def put_behind(self, key: str, tensor: TensorBytes, archive: int) -> int:
        """The place behind the file's end where a tensor appears, its items in order."""
        with self._lock:
            start = -(-self.end(key) // 64) * 64 + _APART_NBYTES
            self._behind.setdefault(key, {})[start] = tensor, archive
            return start

    def _found_behind(self, key: str, offset: int) -> tuple[int, Any] | None:
        with self._lock:
            starts = [start for start in self._behind.get(key, ()) if start <= offset]
            if not starts:
                return None
            start = max(starts)
            tensor, archive = self._behind[key][start]
            if (key, start) not in self._copies:
                self._copies[key, start] = self._in_order(key, tensor, archive)
                while len(self._copies) > _KEPT_COPIES:
                    self._copies.popitem(last=False)
            return start, self._copies[key, start]

    def _in_order(self, key: str, tensor: TensorBytes, archive: int) -> bytes:
        size = itemsize(tensor.dtype)
        stored = self._storage.read(key, archive + tensor.start, tensor.memory[1] - tensor.start)
        items = np.ndarray(
            tensor.shape,
            BIT_DTYPES[size],
            buffer=stored,
            strides=[stride * size for stride in tensor.strides],
        )
        return items.tobytes()

    def close(self) -> None:
        self._storage.close()


def _nbytes(tensor: TensorBytes) -> int:
    return Box.whole(tensor.shape).numel * itemsize(tensor.dtype)


def _fill(buffers: Sequence[Any], data: memoryview) -> None:
    at = 0
    for buffer in buffers:
        view = memoryview(buffer).cast("B")
        view[:] = data[at : at + len(view)]
        at += len(view)


class DcpPlaces:
    """Where the chunks lie, found out from their archives when they are wanted."""

    def __init__(
        self,
        files: DcpFiles,
        manifest: Manifest,
        metadata: DcpMetadata,
        within_values: Sequence[ForeignTensor],
    ) -> None:
        self._files = files
        self._manifest = manifest
        self._metadata = metadata
        self._index = {manifest.file_name(at): at for at in range(len(manifest.files))}
        self._items = {
            (self._index[item.file], key, box): item
            for key, tensor in metadata.tensors.items()
            for box, item in tensor.chunks
        }
        self._starts = {
            (self._index[chunk.file], tensor.key, chunk.box): chunk.start
            for tensor in within_values
            for chunk in tensor.chunks
            if not chunk.box.is_empty
        }

    def fetch(self, indices: Iterable[int], *, threads: int) -> None:
        """Archives are looked into one by one, since few of a file's may be wanted."""

    def chunk(self, index: int, record: TensorRecord, box: Box) -> StoredEntry:
        place = index, record.key, box
        start = self._starts.get(place)
        if start is None:
            start = self._starts[place] = self._start(index, record, box)
        return StoredEntry(
            record.dtype, box.shape, start, start + box.numel * itemsize(record.dtype)
        )

    def starts(self, index: int, records: Sequence[TensorRecord], box: Box) -> list[int]:
        return [self.chunk(index, record, box).start for record in records]

    def _start(self, index: int, record: TensorRecord, box: Box) -> int:
        """The first byte of a chunk in its file, or behind it."""
        item = self._items[index, record.key, box]
        found = self._archive(record.key, item).tensor()
        if (found.dtype, found.shape) != (record.dtype, box.shape):
            raise CorruptError(
                f"{self._files.location}/{item.file} holds {found.dtype} of shape {found.shape} "
                f"where {METADATA_FILE} lists {record.dtype} of shape {box.shape} for "
                f"{record.key!r}; the files are not of one save"
            )
        if found.is_row_major:
            return item.offset + found.start
        return self._files.put_behind(item.file, found, item.offset)

    def _archive(self, key: str, item: Item) -> Archive:
        where = f"{self._files.location}/{item.file} (at {item.offset}, {key!r})"
        return Archive(
            lambda start, nbytes: self._files.read(item.file, item.offset + start, nbytes),
            item.nbytes,
            where,
        )

    def open_file(self, index: int) -> OpenFile:
        name = self._manifest.file_name(index)
        return OpenFile(name, 0, self._files.end(name), 1, None, lambda start, stop: "")

    def damage(self, index: int, chunks: Chunks, meter: Meter) -> list[str]:
        """What the sizes and the CRC-32 of the archives in a file tell; the format has no more."""
        problems: list[str] = []
        for record, box in chunks:
            if (index, record.key, box) in self._items:
                item = self._items[index, record.key, box]
                problems += self._damage(record.key, item, meter, (index, record, box))
        for key, item in self._metadata.objects.items():
            # Files without tensors are not listed; the first one's turn is theirs, too.
            if self._index.get(item.file, 0) == index:
                problems += self._damage(key, item, meter, None)
        return problems

    def _damage(
        self, key: str, item: Item, meter: Meter, place: tuple[int, TensorRecord, Box] | None
    ) -> list[str]:
        try:
            if place is not None:
                self.chunk(*place)
            return self._archive(key, item).damage(meter.add)
        except ShardkeepError as error:
            return [str(error)]

    def own_values(self, index: int) -> Mapping[str, Node]:
        return {}


@dataclass(frozen=True, slots=True)
class _FoundValues:
    """What is no tensor, as nodes by key; tensors within them lie in a file of their own."""

    nodes: Mapping[str, Node]
    tensors: Sequence[ForeignTensor]


_NO_VALUES = _FoundValues({}, ())


class _Values:
    """Reads values with torch, which is told to make nothing but plain ones."""

    def __init__(self, files: DcpFiles, first: int) -> None:
        self._files = files
        self._first = first
        self._nodes: dict[str, Node] = {}
        self._tensors: list[ForeignTensor] = []
        self._data = bytearray()

    def read(self, metadata: DcpMetadata) -> _FoundValues:
        for key, item in metadata.objects.items():
            self._keep(key, self._load(key, item))
        self._files.keep_values(bytes(self._data))
        return _FoundValues(self._nodes, self._tensors)

    def _load(self, key: str, item: Item) -> Any:
        import torch

        where = f"{self._files.location}: {key!r}"
        if item.nbytes > _MAX_VALUE_NBYTES:
            raise UnsupportedError(f"{where} is a value of {item.nbytes} bytes; load it with DCP")
        data = self._files.read(item.file, item.offset, item.nbytes)
        archive = Archive(lambda start, nbytes: data[start : start + nbytes], len(data), where)
        check_archive(archive, where=where)
        try:
            value = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        except Exception as error:
            raise unreadable(where, error) from None
        check_loaded(value, len(data), where=where)
        return value

    def _keep(self, key: str, value: Any) -> None:
        from shardkeep.state.keeping import keep_state
        from shardkeep.transfer.write import as_bytes

        try:
            kept = keep_state(value)
        except InvalidError as error:
            raise UnsupportedError(f"{self._files.location}: {key!r}: {error}") from None
        numbers: list[int] = []
        for name, entry in kept.entries.items():
            numbers.append(self._first + len(self._tensors))
            # So that items of any size lie as memory wants them.
            self._data.extend(bytes(-len(self._data) % 16))
            chunk = ForeignChunk(Box.whole(entry.shape), VALUES_FILE, len(self._data))
            full = f"{key}.{name}" if name else key
            self._tensors.append(ForeignTensor(full, entry.dtype, entry.shape, [chunk]))
            self._data.extend(as_bytes(kept.memory[name][0]))
        self._nodes[key] = relabel(kept.tree, numbers)


def unreadable(where: str, error: Exception) -> ShardkeepError:
    """Why torch would not load a value without running code."""
    asked = re.search(
        r"GLOBAL (\S+)|(?:Unsupported|unsupported) (?:class|global|operand).*", str(error)
    )
    if "weights_only" in str(error) or "Weights only" in str(error) or asked:
        name = asked[1] or asked[0] if asked else "what torch does not take for plain data"
        return UnsupportedError(
            f"{where} is pickled with {name:.200}, which might run code: nothing was run. Leave it "
            "out with keys=, or load it with torch where you trust it"
        )
    said = (str(error).splitlines() or ["it ends early"])[0]
    return CorruptError(f"{where} cannot be read: {said:.200}; take another copy")

"""How is a folder of torch DCP read? In place, like a checkpoint of ours, each rank its slices.

Each chunk is an archive of torch.save within a file. Its directory is read when the chunk is
first wanted, and tells where the bytes lie; these are read like any others. Torch is imported
only for values that are no tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from shardkeep.boxes import Box
from shardkeep.errors import CorruptError, NotFoundError, ShardkeepError
from shardkeep.manifest import Manifest, Node, StoredEntry, TensorRecord, itemsize
from shardkeep.storage import LocalStorage
from shardkeep.transfer.collecting import gc_paused
from shardkeep.transfer.open_manifest import Chunks
from shardkeep.transfer.opened import Opened
from shardkeep.transfer.progress import Meter
from shardkeep.transfer.read import OpenFile
from shardkeep.translate.dcp_files import DcpFiles
from shardkeep.translate.dcp_metadata import MAX_METADATA_NBYTES, DcpMetadata, Item, read_metadata
from shardkeep.translate.dcp_tree import build_tree
from shardkeep.translate.dcp_values import NO_VALUES, Values
from shardkeep.translate.foreign import ForeignChunk, ForeignTensor, open_foreign
from shardkeep.translate.torch_archive import Archive

METADATA_FILE = ".metadata"


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
    found = Values(files, len(tensors)).read(metadata) if values else NO_VALUES
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

"""How does a checkpoint of another format look to those who read it? Like one of ours.

A format's reader lists tensors with their chunks, each with its file and first byte. What comes
of it is opened, loaded, compared and imported by the code that does so for our own format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import xxhash

from shardkeep.boxes import Box, check_tiling
from shardkeep.errors import CorruptError, NotFoundError
from shardkeep.manifest import (
    BoxGrid,
    DictNode,
    FileRecord,
    FileTable,
    Json,
    Manifest,
    Node,
    Runs,
    SplitGrid,
    StoredEntry,
    TensorNode,
    TensorRecord,
    itemsize,
)
from shardkeep.manifest.model import NO_GRID
from shardkeep.storage.protocols import CanMeasure
from shardkeep.transfer.collecting import gc_paused
from shardkeep.transfer.open_manifest import Chunks
from shardkeep.transfer.opened import Files, Opened
from shardkeep.transfer.progress import Meter
from shardkeep.transfer.read import OpenFile


class ForeignFiles(Files, CanMeasure, Protocol):
    """What is used of a storage."""


# Made by the 100,000s: Structs are several times as fast as dataclasses.
class ForeignChunk(msgspec.Struct, frozen=True, gc=False):
    """A box of a tensor: its items lie row-major in a file, from byte `start` on."""

    box: Box
    file: str
    start: int


class ForeignTensor(msgspec.Struct, frozen=True, gc=False):
    """A tensor, its dtype by our format's name, and where its cells are."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    chunks: Sequence[ForeignChunk]


@dataclass(frozen=True)
class ForeignManifest(Manifest):
    """A manifest made from another format: files have names of their own."""

    format: str = ""
    names: tuple[str, ...] = ()

    def file_name(self, index: int) -> str:
        return self.names[index]


FileCheck = Callable[[str, Meter], list[str]]
"""What is wrong with a file of this name, as far as its format tells."""


def open_foreign(
    files: ForeignFiles,
    tensors: Sequence[ForeignTensor],
    *,
    format: str,
    damage: FileCheck,
    tree: Callable[[Mapping[str, Node]], Node] | None = None,
    metadata: Mapping[str, Json] | None = None,
    world: int = 1,
) -> Opened:
    """A checkpoint made of these tensors.

    `tree` is given each tensor's node by key and makes the structure of the state; without it
    that is one dict. Tensors whose chunks do not tile them, or lie outside of their files, are a
    CorruptError.
    """
    names = tuple(sorted({chunk.file for tensor in tensors for chunk in tensor.chunks}))
    sizes = {name: _size_of(files, name) for name in names}
    with gc_paused():
        for tensor in tensors:
            _require_whole(files, tensor, sizes)
        grids = _Grids(names)
        records = [
            TensorRecord(tensor.key, tensor.dtype, tensor.shape, grids.number(tensor))
            for tensor in tensors
        ]
        # No two chunks of a tensor that have cells start at the same one.
        starts = {
            (tensor.key, chunk.box.start): chunk.start
            for tensor in tensors
            for chunk in tensor.chunks
            if not chunk.box.is_empty
        }
    if len({record.key for record in records}) < len(records):
        raise CorruptError(f"{files.location} names a tensor twice")
    nodes: dict[str, Node] = {record.key: TensorNode(at) for at, record in enumerate(records)}
    manifest = ForeignManifest(
        save_id=_identity(sizes, tensors),
        world=world,
        tree=tree(nodes) if tree is not None else DictNode(tuple(nodes.items()), ordered=False),
        tensors=tuple(records),
        grids=tuple(grids.numbers),
        files=FileTable.of([FileRecord(at, 0, sizes[n], 0, 0) for at, n in enumerate(names)]),
        metadata=dict(metadata or {}),
        format=format,
        names=names,
    )
    places = ForeignPlaces(manifest, starts, damage)
    return Opened(files, manifest, places, lambda: manifest.save_id)


class ForeignPlaces:
    """Where the chunks are, known from the start; there are no digests."""

    def __init__(
        self,
        manifest: Manifest,
        starts: Mapping[tuple[str, tuple[int, ...]], int],
        damage: FileCheck,
    ) -> None:
        self._manifest = manifest
        self._starts = starts
        self._damage = damage

    def fetch(self, indices: Iterable[int], *, threads: int) -> None:
        """Nothing is left to be read."""

    def chunk(self, index: int, record: TensorRecord, box: Box) -> StoredEntry:
        start = self._starts[record.key, box.start]
        return StoredEntry(
            record.dtype, box.shape, start, start + box.numel * itemsize(record.dtype)
        )

    def starts(self, index: int, records: Sequence[TensorRecord], box: Box) -> list[int]:
        return [self._starts[record.key, box.start] for record in records]

    def open_file(self, index: int) -> OpenFile:
        nbytes = self._manifest.files.nbytes[index]
        name = self._manifest.file_name(index)
        return OpenFile(name, 0, nbytes, 1, None, lambda start, stop: "")

    def damage(self, index: int, chunks: Chunks, meter: Meter) -> list[str]:
        return self._damage(self._manifest.file_name(index), meter)

    def own_values(self, index: int) -> Mapping[str, Node]:
        return {}


def _size_of(files: ForeignFiles, name: str) -> int:
    try:
        return files.size(name)
    except NotFoundError as error:
        raise NotFoundError(
            f"{files.location} lacks the file {name!r}, which holds tensors; copy it there, too"
        ) from error


def _require_whole(files: ForeignFiles, tensor: ForeignTensor, sizes: Mapping[str, int]) -> None:
    size = itemsize(tensor.dtype)
    for chunk in tensor.chunks:
        stop = chunk.start + chunk.box.numel * size
        if chunk.start < 0 or stop > sizes[chunk.file]:
            raise CorruptError(
                f"{files.location}/{chunk.file} has {sizes[chunk.file]} bytes, but {tensor.key!r} "
                f"should lie at {chunk.start} to {stop}: the file was cut off"
            )
    if _is_whole(tensor):
        return
    report = check_tiling(tensor.shape, [chunk.box for chunk in tensor.chunks])
    if not report.is_tiling:
        raise CorruptError(
            f"{files.location}: the parts of {tensor.key!r} do not make it up: {report}"
        )


def _is_whole(tensor: ForeignTensor) -> bool:
    """Whether it lies in one piece."""
    if len(tensor.chunks) != 1:
        return False
    box = tensor.chunks[0].box
    return box.stop == tensor.shape and not any(box.start)


class _Grids:
    """How tensors are divided, by number; equal ones are kept once."""

    def __init__(self, names: Sequence[str]) -> None:
        self._index_of = {name: index for index, name in enumerate(names)}
        self._whole: dict[tuple[str, int], int] = {}
        self.numbers: dict[SplitGrid | BoxGrid, int] = {}

    def number(self, tensor: ForeignTensor) -> int:
        """The tensor's grid; NO_GRID of one without cells."""
        if 0 in tensor.shape:
            return NO_GRID
        if not _is_whole(tensor):
            chunks = [chunk for chunk in tensor.chunks if not chunk.box.is_empty]
            files = Runs.of([self._index_of[chunk.file] for chunk in chunks])
            return self._add(BoxGrid(tuple(chunk.box for chunk in chunks), files))
        alike = tensor.chunks[0].file, len(tensor.shape)
        if alike not in self._whole:
            files = Runs.of([self._index_of[alike[0]]])
            self._whole[alike] = self._add(SplitGrid(((),) * alike[1], files))
        return self._whole[alike]

    def _add(self, grid: SplitGrid | BoxGrid) -> int:
        return self.numbers.setdefault(grid, len(self.numbers))


def _identity(sizes: Mapping[str, int], tensors: Sequence[ForeignTensor]) -> str:
    """A name for what is there, so that ranks can tell whether they read the same."""
    listed = [sorted(sizes.items()), [(one.key, one.dtype, one.shape) for one in tensors]]
    return f"foreign-{xxhash.xxh3_64_hexdigest(msgspec.json.encode(listed))}"

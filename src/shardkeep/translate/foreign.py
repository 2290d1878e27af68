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
from shardkeep.transfer.open_manifest import Chunks
from shardkeep.transfer.opened import Files, Opened
from shardkeep.transfer.progress import Meter
from shardkeep.transfer.read import OpenFile


class ForeignFiles(Files, CanMeasure, Protocol):
    """What is used of a storage."""


@dataclass(frozen=True, slots=True)
class ForeignChunk:
    """A box of a tensor: its items lie row-major in a file, from byte `start` on."""

    box: Box
    file: str
    start: int


@dataclass(frozen=True, slots=True)
class ForeignTensor:
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
    index_of = {name: index for index, name in enumerate(names)}
    grids: dict[SplitGrid | BoxGrid, int] = {}
    records: list[TensorRecord] = []
    starts: dict[tuple[int, str, Box], int] = {}
    for tensor in tensors:
        _require_whole(files, tensor, sizes)
        records.append(_record(tensor, index_of, grids))
        for chunk in tensor.chunks:
            starts[index_of[chunk.file], tensor.key, chunk.box] = chunk.start
    if len({record.key for record in records}) < len(records):
        raise CorruptError(f"{files.location} names a tensor twice")
    nodes: dict[str, Node] = {record.key: TensorNode(at) for at, record in enumerate(records)}
    manifest = ForeignManifest(
        save_id=_identity(sizes, tensors),
        world=world,
        tree=tree(nodes) if tree is not None else DictNode(tuple(nodes.items()), ordered=False),
        tensors=tuple(records),
        grids=tuple(grids),
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
        starts: Mapping[tuple[int, str, Box], int],
        damage: FileCheck,
    ) -> None:
        self._manifest = manifest
        self._starts = starts
        self._damage = damage

    def fetch(self, indices: Iterable[int], *, threads: int) -> None:
        """Nothing is left to be read."""

    def chunk(self, index: int, record: TensorRecord, box: Box) -> StoredEntry:
        start = self._starts[index, record.key, box]
        return StoredEntry(
            record.dtype, box.shape, start, start + box.numel * itemsize(record.dtype)
        )

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
    if len(tensor.chunks) == 1 and tensor.chunks[0].box == Box.whole(tensor.shape):
        return
    report = check_tiling(tensor.shape, [chunk.box for chunk in tensor.chunks])
    if not report.is_tiling:
        raise CorruptError(
            f"{files.location}: the parts of {tensor.key!r} do not make it up: {report}"
        )


def _record(
    tensor: ForeignTensor, index_of: Mapping[str, int], grids: dict[SplitGrid | BoxGrid, int]
) -> TensorRecord:
    chunks = [chunk for chunk in tensor.chunks if not chunk.box.is_empty]
    if not chunks:
        return TensorRecord(tensor.key, tensor.dtype, tensor.shape, NO_GRID)
    files = Runs.of([index_of[chunk.file] for chunk in chunks])
    if len(chunks) == 1:
        grid = SplitGrid(((),) * len(tensor.shape), files)
    else:
        grid = BoxGrid(tuple(chunk.box for chunk in chunks), files)
    return TensorRecord(tensor.key, tensor.dtype, tensor.shape, grids.setdefault(grid, len(grids)))


def _identity(sizes: Mapping[str, int], tensors: Sequence[ForeignTensor]) -> str:
    """A name for what is there, so that ranks can tell whether they read the same."""
    listed = [sorted(sizes.items()), [(one.key, one.dtype, one.shape) for one in tensors]]
    return f"foreign-{xxhash.xxh3_64_hexdigest(msgspec.json.encode(listed))}"

"""How does a checkpoint become a folder that torch.distributed.checkpoint loads?

Tensors are cut into chunks, each an archive of torch.save, in one file of each thread. The paths
of the nested state are written down as DCP's own planner does, so that it finds every key.
"""

# torch leaves save() and the classes of its checkpoints in part untyped.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import io
import os
import pickle
import secrets
import shutil
import time
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo  # pyright: ignore[reportPrivateUsage]
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from shardkeep.boxes import Box
from shardkeep.errors import (
    ConflictError,
    CorruptError,
    InvalidError,
    ShardkeepError,
)
from shardkeep.manifest import ArrayNode, Node, TensorNode, itemsize
from shardkeep.plan import cut
from shardkeep.state.building import build_state
from shardkeep.state.dtypes import TORCH_DTYPES
from shardkeep.storage.failures import storage_error
from shardkeep.transfer.lazy import Checkpoint
from shardkeep.transfer.opened import Opened
from shardkeep.transfer.progress import Meter
from shardkeep.translate.choosing import Rename
from shardkeep.translate.dcp_reading import METADATA_FILE, open_dcp
from shardkeep.translate.export_target import require_space
from shardkeep.translate.flattening import Leaves, flattened
from shardkeep.translate.opening import format_of
from shardkeep.translate.safetensors_writing import ExportReport
from shardkeep.translate.state_export import (
    OutState,
    PieceReader,
    piece_nbytes,
    select_state,
    tied_names,
)

# The directory, the pickle and the padding of an archive of torch.save, and its line of .metadata.
_ITEM_NBYTES = 2048
_VERSION = "1.0.0"
"""Of DCP's metadata."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """A box of a tensor that goes to one of the files."""

    number: int
    box: Box
    nbytes: int
    file: int


def export_dcp(
    source: Opened,
    dest: Path,
    *,
    keys: Sequence[str] | None,
    prefix: str,
    rename: Rename | None,
    dtype: str | None,
    max_memory_nbytes: int,
    threads: int,
    force: bool,
    verify: bool,
    meter: Meter,
) -> ExportReport:
    """Write what a checkpoint holds as a folder of DCP; `dest` appears when it is whole."""
    started = time.perf_counter()
    if threads < 1:
        raise InvalidError(f"threads must be at least 1, got {threads}")
    state = select_state(source, keys=keys, prefix=prefix, rename=rename, dtype=dtype)
    leaves = flattened(state.tree)
    pieces = _pieces(source, state, piece_nbytes(max_memory_nbytes, threads), threads)
    total = sum(piece.nbytes for piece in pieces) + _ITEM_NBYTES * (len(pieces) + len(leaves))
    _require_free(dest, force)
    require_space(dest, total)
    meter.expect(sum(piece.nbytes for piece in pieces) * (2 if verify else 1))
    reader = PieceReader(source, state)
    with _staged(dest, force) as folder:
        writer = _Writer(folder, reader, meter)
        writer.write(pieces, leaves, threads)
        writer.finish(leaves)
        if verify:
            _verify(folder, meter)
        files = tuple(sorted(one.name for one in folder.iterdir()))
        nbytes = sum((folder / name).stat().st_size for name in files)
    return ExportReport(
        str(dest),
        files,
        len(state.dtypes),
        nbytes,
        tuple(
            name
            for number, name in state.names.items()
            if state.dtypes[number] != source.manifest.tensors[number].dtype
        ),
        tuple(sorted(reader.overflowed)),
        tied_names(state),
        state.skipped,
        time.perf_counter() - started,
    )


def _pieces(source: Opened, state: OutState, max_nbytes: int, threads: int) -> list[_Piece]:
    """The boxes of all tensors, shared out over the files so that all have alike much."""
    loads = [0] * threads
    found: list[_Piece] = []
    for number, dtype in state.dtypes.items():
        record = source.manifest.tensors[number]
        size = max(itemsize(dtype), itemsize(record.dtype))
        for box in cut(record.shape, max(1, max_nbytes // size)):
            nbytes = box.numel * itemsize(dtype)
            file = loads.index(min(loads))
            loads[file] += nbytes + _ITEM_NBYTES
            found.append(_Piece(number, box, nbytes, file))
    return found


class _Writer:
    """Writes the files of a folder, and keeps what goes into its metadata."""

    def __init__(self, folder: Path, reader: PieceReader, meter: Meter) -> None:
        self._folder = folder
        self._reader = reader
        self._meter = meter
        self._chunks: dict[int, list[tuple[Box, _StorageInfo]]] = {}
        self._values: dict[str, _StorageInfo] = {}

    def write(self, pieces: Sequence[_Piece], leaves: Leaves, threads: int) -> None:
        """Write all data. The lists of chunks are made first: threads fill in their own."""
        for piece in pieces:
            self._chunks.setdefault(piece.number, [])
        values: dict[str, Node] = {
            key: node
            for key, (_, node) in leaves.items()
            if not isinstance(node, TensorNode | ArrayNode)
        }
        with ThreadPoolExecutor(threads, "shardkeep-export") as pool:
            acts = [
                pool.submit(
                    self._write_file,
                    file,
                    [piece for piece in pieces if piece.file == file],
                    values if file == 0 else {},
                )
                for file in range(threads)
            ]
            for act in acts:
                act.result()

    def _write_file(self, number: int, pieces: Sequence[_Piece], values: dict[str, Node]) -> None:
        if not pieces and not values:
            return
        name = f"__0_{number}.distcp"
        with (self._folder / name).open("xb") as stream:
            for key, node in values.items():
                value = build_state(node, self._reader.tensor, str)
                self._values[key] = self._save(name, stream, value)
            for piece in pieces:
                tensor = self._reader.tensor(piece.number, piece.box)
                place = self._save(name, stream, tensor)
                self._chunks[piece.number].append((piece.box, place))
                self._meter.add(piece.nbytes)
            stream.flush()
            os.fsync(stream.fileno())

    def _save(self, name: str, stream: io.BufferedWriter, value: Any) -> _StorageInfo:
        # By way of memory: where a disk is full, torch's own writer would end the process.
        archive = io.BytesIO()
        torch.save(value, archive)
        start = stream.tell()
        stream.write(archive.getbuffer())
        return _StorageInfo(name, start, archive.tell())

    def finish(self, leaves: Leaves) -> None:
        """Write the metadata, last of all."""
        listed: dict[str, Any] = {}
        places: dict[MetadataIndex, _StorageInfo] = {}
        for key, (_, node) in leaves.items():
            if isinstance(node, TensorNode | ArrayNode):
                listed[key] = self._tensor(key, node.index, places)
            else:
                listed[key] = BytesStorageMetadata()
                places[MetadataIndex(key)] = self._values[key]
        paths = {key: path for key, (path, _) in leaves.items()}
        metadata = Metadata(listed, planner_data=paths, storage_data=places, version=_VERSION)
        with (self._folder / METADATA_FILE).open("xb") as stream:
            pickle.dump(metadata, stream)
            stream.flush()
            os.fsync(stream.fileno())

    def _tensor(
        self, key: str, number: int, places: dict[MetadataIndex, _StorageInfo]
    ) -> TensorStorageMetadata:
        chunks: list[ChunkStorageMetadata] = []
        for at, (box, place) in enumerate(sorted(self._chunks[number], key=lambda c: c[0].start)):
            chunks.append(ChunkStorageMetadata(torch.Size(box.start), torch.Size(box.shape)))
            places[MetadataIndex(key, box.start, at)] = place
        record = self._reader.source.manifest.tensors[number]
        dtype = TORCH_DTYPES[self._reader.state.dtypes[number]]
        return TensorStorageMetadata(TensorProperties(dtype), torch.Size(record.shape), chunks)


def _verify(folder: Path, meter: Meter) -> None:
    """Read everything again, as a reader of DCP finds it."""
    opened = open_dcp(folder, values=False)
    with Checkpoint(opened, threads=1, owns_storage=True) as written:
        report = written.verify(progress=lambda done, total: None)
    if report.problems:
        raise CorruptError(
            f"the export is not what was written: {report.problems[0]}; check the disk, and "
            "export again"
        )
    meter.add(sum(record.nbytes for record in opened.manifest.tensors))


def _require_free(dest: Path, force: bool) -> None:
    if not os.path.lexists(dest):
        return
    if dest.is_symlink() or not dest.is_dir():
        raise ConflictError(f"{dest} is there already, and is no folder; name another")
    if not any(dest.iterdir()):
        return
    if format_of(dest) != "dcp":
        raise ConflictError(f"{dest} is there already and holds other things; name another folder")
    if not force:
        raise ConflictError(f"{dest} is a folder of DCP already; name another, or force it")


@contextmanager
def _staged(dest: Path, force: bool) -> Generator[Path]:
    """A folder beside `dest` that takes its place when all went well, else goes."""
    hidden = dest.absolute().parent / f".{dest.name}-export-{secrets.token_hex(8)}"
    try:
        hidden.mkdir(parents=True)
        yield hidden
        _require_free(dest, force)
        _sync(hidden)
        _put_in_place(hidden, dest)
        _sync(dest.absolute().parent)
    except OSError as error:
        if isinstance(error, ShardkeepError):
            raise
        raise storage_error(error, "writing the export", str(dest)) from error
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def _put_in_place(hidden: Path, dest: Path) -> None:
    old = dest.absolute().parent / f"{hidden.name}-old"
    if dest.is_dir() and any(dest.iterdir()):
        os.rename(dest, old)
    try:
        # An empty folder gives way.
        os.rename(hidden, dest)
    except OSError:
        with suppress(OSError):
            os.rename(old, dest)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

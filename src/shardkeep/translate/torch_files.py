"""How are files of torch.save read and written, without running code and without much memory?

Such a file is a ZIP archive: a pickle of the state, in which tensors are made of memory that lies
in entries of its own. These are written piece by piece.
"""

# torch leaves the classes of its storages untyped.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateUsage=false

from __future__ import annotations

import io
import math
import os
import pickle
import struct
import time
import zipfile
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from mmap import PROT_READ, mmap
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import _utils

from shardkeep.errors import CorruptError, NotFoundError, ShardkeepError, UnsupportedError
from shardkeep.manifest import (
    ArrayNode,
    DictNode,
    ListNode,
    Node,
    TensorNode,
    TupleNode,
    itemsize,
)
from shardkeep.plan import cut
from shardkeep.state.building import build_state
from shardkeep.state.dtypes import TORCH_DTYPES
from shardkeep.transfer.opened import Opened
from shardkeep.transfer.progress import Meter
from shardkeep.translate.choosing import Rename
from shardkeep.translate.export_target import require_free, require_space, staged
from shardkeep.translate.plain_values import check_archive, check_loaded, check_pickled, unreadable
from shardkeep.translate.safetensors_writing import ExportReport
from shardkeep.translate.state_export import PieceReader, piece_nbytes, select_state, tied_names
from shardkeep.translate.torch_archive import LOCAL, Archive

_ROOT = "archive"
# The number that files of torch before 1.6 start with, pickled.
_OLD_HEAD = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_ALIGNMENT = 64
# An entry's line in the directory, its header and padding.
_ENTRY_NBYTES = 512


def load_torch(path: Path) -> Any:
    """The value in a file of torch.save, its tensors mapped; nothing of the file is run."""
    if not path.is_file():
        raise NotFoundError(f"{path} is no file; check the path")
    is_archive = _check(path)
    try:
        # Files of torch before 1.6 are no archives, and cannot be mapped.
        value = torch.load(path, map_location="cpu", weights_only=True, mmap=is_archive)
    except Exception as error:
        raise unreadable(str(path), error) from None
    check_loaded(value, path.stat().st_size, where=str(path))
    return value


def _check(path: Path) -> bool:
    """Whether the file is an archive; raises if loading it would take more than its length."""
    where, nbytes = str(path), path.stat().st_size
    with path.open("rb") as file:
        head = file.read(len(_OLD_HEAD))
        # Just as torch tells them apart: whatever it takes for an archive must be looked at.
        if head.startswith(LOCAL):
            read = partial(_read_at, file.fileno())
            check_archive(Archive(read, nbytes, where), where=where)
            return True
        # Anything else might be a TAR archive to torch, which unpacks it into a folder.
        if head != _OLD_HEAD:
            raise UnsupportedError(
                f"{where} is no file that torch.save has written since torch 0.1.10; nothing was "
                "run. Load it where you trust it, and save it anew"
            )
        with mmap(file.fileno(), 0, prot=PROT_READ) as pages:
            check_pickled(pages, where=where)
        return False


def _read_at(fd: int, start: int, nbytes: int) -> bytes:
    return os.pread(fd, nbytes, start)


def damage_of_torch(path: Path, meter: Meter) -> list[str]:
    """What the checksums of a file of torch.save tell; one of before torch 1.6 has none."""
    with path.open("rb") as file:
        if not zipfile.is_zipfile(file):
            return []

        def read(start: int, nbytes: int) -> bytes:
            return os.pread(file.fileno(), nbytes, start)

        try:
            archive = Archive(read, path.stat().st_size, str(path))
            return archive.damage(meter.add)
        except ShardkeepError as error:
            return [str(error)]


def export_torch(
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
    """Write what a checkpoint holds as one file that torch.load reads, also with weights_only.

    Tied tensors share their memory there, too; arrays become tensors.
    """
    started = time.perf_counter()
    state = select_state(source, keys=keys, prefix=prefix, rename=rename, dtype=dtype)
    tensors = source.manifest.tensors
    sizes = {number: state.nbytes_of(number, tensors[number]) for number in state.dtypes}
    require_free(dest, is_file=True, force=force)
    require_space(dest, sum(sizes.values()) + _ENTRY_NBYTES * (len(sizes) + 4))
    meter.expect(sum(sizes.values()) * (2 if verify else 1))
    reader = PieceReader(source, state)
    with staged(dest, is_file=True, force=force) as storage:
        # The archive is made here, and appears with the folder.
        written = Path(storage.location) / dest.name
        _Writer(reader, piece_nbytes(max_memory_nbytes, 1), meter).write(written)
        if verify:
            _verify(written, meter)
        nbytes = written.stat().st_size
    return ExportReport(
        str(dest),
        (dest.name,),
        len(sizes),
        nbytes,
        tuple(state.names[at] for at in sizes if state.dtypes[at] != tensors[at].dtype),
        tuple(sorted(reader.overflowed)),
        tied_names(state),
        state.skipped,
        time.perf_counter() - started,
    )


def _verify(path: Path, meter: Meter) -> None:
    problems = damage_of_torch(path, meter)
    if problems:
        raise CorruptError(
            f"the export is not what was written: {problems[0]}; check the disk, and export again"
        )


@dataclass(frozen=True, slots=True)
class _Memory:
    """The memory of a tensor, which lies in an entry of the archive."""

    number: int
    dtype: torch.dtype
    numel: int


class _Tensor:
    """Stands for a tensor while the state is pickled: one for all places of a tied one."""

    def __init__(self, memory: _Memory, shape: tuple[int, ...]) -> None:
        self.memory = memory
        self.shape = shape


class _Pickler(pickle.Pickler):
    """Writes a state as torch.save does, with the memory of tensors left outside."""

    def persistent_id(self, obj: Any) -> Any:
        if not isinstance(obj, _Memory):
            return None
        kind = _storage_type(obj.dtype)
        count = obj.numel if kind is not torch.UntypedStorage else obj.numel * obj.dtype.itemsize
        return ("storage", kind, str(obj.number), "cpu", count)

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, _Tensor):
            return NotImplemented
        memory = obj.memory
        hooks: OrderedDict[str, Any] = OrderedDict()
        parts = memory, 0, obj.shape, _strides(obj.shape), False, hooks
        if _storage_type(memory.dtype) is torch.UntypedStorage:
            return _utils._rebuild_tensor_v3, (*parts, memory.dtype)
        return _utils._rebuild_tensor_v2, parts


def _storage_type(dtype: torch.dtype) -> Any:
    """The class that stands for memory of a dtype; for some there is none but that of bytes."""
    found = torch.storage._dtype_to_storage_type_map().get(dtype)
    return getattr(torch, found) if found is not None else torch.UntypedStorage


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(max(1, side) for side in shape[dim + 1 :]) for dim in range(len(shape)))


class _Writer:
    """Writes the archive, entry by entry; large ones piece by piece."""

    def __init__(self, reader: PieceReader, piece_nbytes: int, meter: Meter) -> None:
        self._reader = reader
        self._piece_nbytes = piece_nbytes
        self._meter = meter

    def write(self, path: Path) -> None:
        with path.open("xb") as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
                self._put(archive, "data.pkl", self._pickled())
                self._put(archive, "byteorder", b"little")
                for number in self._reader.state.dtypes:
                    self._put_tensor(archive, number)
                self._put(archive, "version", b"3\n")
            file.flush()
            os.fsync(file.fileno())

    def _pickled(self) -> bytes:
        made: dict[int, _Tensor] = {}

        def tensor(number: int) -> Any:
            if number not in made:
                shape = self._reader.source.manifest.tensors[number].shape
                dtype = TORCH_DTYPES[self._reader.state.dtypes[number]]
                made[number] = _Tensor(_Memory(number, dtype, math.prod(shape)), shape)
            return made[number]

        pickled = io.BytesIO()
        _Pickler(pickled, protocol=2).dump(build_state(_tensors_only(self._tree), tensor, str))
        return pickled.getvalue()

    @property
    def _tree(self) -> Node:
        return self._reader.state.tree

    def _put(self, archive: zipfile.ZipFile, name: str, data: bytes) -> None:
        with archive.open(_entry(archive, name), "w") as entry:
            entry.write(data)

    def _put_tensor(self, archive: zipfile.ZipFile, number: int) -> None:
        record, dtype = self._reader.source.manifest.tensors[number], self._reader.state.dtypes
        size = max(itemsize(dtype[number]), itemsize(record.dtype))
        nbytes = self._reader.state.nbytes_of(number, record)
        is_large = nbytes >= 2**31
        with archive.open(
            _entry(archive, f"data/{number}", is_large=is_large), "w", force_zip64=is_large
        ) as entry:
            if not nbytes:
                return
            for box in cut(record.shape, max(1, self._piece_nbytes // size)):
                bits = self._reader.read(number, box)
                entry.write(bits.reshape(-1).view(np.uint8).data)
                self._meter.add(bits.nbytes)


def _entry(archive: zipfile.ZipFile, name: str, *, is_large: bool = False) -> zipfile.ZipInfo:
    """An entry whose content will start at a multiple of 64 bytes, as torch wants it."""
    found = zipfile.ZipInfo(f"{_ROOT}/{name}")
    file: Any = archive.fp
    start = file.tell() + 30 + len(found.filename) + (20 if is_large else 0)
    # A field for padding takes four bytes before its content.
    padding = -(start + 4) % _ALIGNMENT
    found.extra = struct.pack("<2sH", b"FB", padding) + b"Z" * padding
    return found


def _tensors_only(node: Node) -> Node:
    """The structure with tensors where arrays were."""
    if isinstance(node, ArrayNode):
        return TensorNode(node.index)
    if isinstance(node, DictNode):
        return replace(node, items=tuple((key, _tensors_only(one)) for key, one in node.items))
    if isinstance(node, ListNode | TupleNode):
        return replace(node, items=tuple(map(_tensors_only, node.items)))
    return node

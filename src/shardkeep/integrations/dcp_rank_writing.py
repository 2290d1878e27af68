"""What does one rank write of a checkpoint that DCP saves, and tell of it?"""

# torch leaves futures and the classes of its checkpoints in part untyped.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import io
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from shardkeep.boxes import Box
from shardkeep.errors import InvalidError
from shardkeep.integrations.dcp_manifest import WrittenTensor, WrittenValue, dtype_name
from shardkeep.manifest import FileRecord, chunk_name, encode_tree
from shardkeep.state.frozen import Memory
from shardkeep.state.keeping import keep_state
from shardkeep.storage import Storage
from shardkeep.transfer.progress import Meter
from shardkeep.transfer.write import Job, OutChunk, write_files
from shardkeep.translate.plain_values import unreadable

# Below this, a second file costs more than a second thread gains.
_MIN_NBYTES_FOR_FILES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Task:
    """What the coordinator tells a rank."""

    save_id: str
    rank: int


@dataclass(frozen=True, slots=True)
class Note:
    """What a rank tells the coordinator of one item; its first has the files, too."""

    content: WrittenTensor | WrittenValue
    host: str
    files: tuple[FileRecord, ...] = ()


class RankWriter:
    """One rank's part of a save."""

    def __init__(self, storage: Storage, task: Task, planner: SavePlanner, threads: int) -> None:
        self._storage = storage
        self._task = task
        self._planner = planner
        self._threads = threads
        self._chunks: list[OutChunk] = []
        self._loads = [0]

    def write(self, items: Sequence[WriteItem]) -> list[WriteResult]:
        data = [(item, self._resolved(item)) for item in items]
        total = sum(one.nbytes for _, one in data if isinstance(one, torch.Tensor))
        if total >= _MIN_NBYTES_FOR_FILES:
            self._loads = [0] * self._threads
        contents = [
            self._value(item.index.fqn, one.value)
            if isinstance(one, _Value)
            else self._tensor(item, one)
            for item, one in data
        ]
        job = Job(self._task.save_id, self._task.rank, self._chunks, {})
        with Meter("saving", None, show=False) as meter:
            files = tuple(write_files(self._storage, job, meter))
        host = socket.gethostname()
        return [
            WriteResult(
                item.index,
                item.tensor_storage_size() or 0,
                Note(content, host, files if at == 0 else ()),
            )
            for at, (item, content) in enumerate(zip(items, contents, strict=True))
        ]

    def _resolved(self, item: WriteItem) -> Any:
        if item.type != WriteItemType.BYTE_IO:
            tensor: Any = self._planner.resolve_data(item)
            return tensor.detach()
        kind, default = type(self._planner), DefaultSavePlanner
        if (
            isinstance(self._planner, DefaultSavePlanner)
            and kind.resolve_data is default.resolve_data
            and kind.transform_object is default.transform_object  # pyright: ignore
        ):
            return _Value(self._planner.lookup_object(item.index))
        # Planners that make something else of it hand out bytes only.
        found: Any = self._planner.resolve_data(item)
        try:
            return _Value(torch.load(io.BytesIO(found.getvalue()), weights_only=True))
        except Exception as error:
            raise unreadable(repr(item.index.fqn), error) from None

    def _tensor(self, item: WriteItem, tensor: torch.Tensor) -> WrittenTensor:
        key, planned = item.index.fqn, item.tensor_data
        if planned is None or tuple(planned.chunk.sizes) != tuple(tensor.shape):
            raise InvalidError(f"{key!r} is of another shape than was planned")
        if planned.properties.dtype != tensor.dtype:
            raise InvalidError(
                f"{key!r} is {tensor.dtype}, but {planned.properties.dtype} was planned"
            )
        start = tuple(planned.chunk.offsets)
        box = Box(start, tuple(a + n for a, n in zip(start, tensor.shape, strict=True)))
        name = chunk_name(key, box, tuple(planned.size))
        return WrittenTensor(self._add(name, dtype_name(key, tensor.dtype), tensor))

    def _value(self, key: str, value: Any) -> WrittenValue:
        try:
            kept = keep_state(value)
        except InvalidError as error:
            raise InvalidError(f"{key!r}: {error}") from error
        if kept.per_rank:
            raise InvalidError(f"{key!r}: DCP keeps one value for all ranks, not one of each")
        tensors = tuple(
            (
                name,
                entry.dtype,
                entry.shape,
                self._add(
                    chunk_name(f"{key}.{name}", Box.whole(entry.shape), entry.shape),
                    entry.dtype,
                    kept.memory[name][0],
                ),
            )
            for name, entry in kept.entries.items()
        )
        return WrittenValue(encode_tree(kept.tree, tensor_count=len(tensors)), tensors)

    def _add(self, name: str, dtype: str, memory: Memory) -> tuple[int, int]:
        number = self._loads.index(min(self._loads))
        if memory.numel():
            self._loads[number] += memory.nbytes
            self._chunks.append(OutChunk(name, dtype, memory, number))
        return self._task.rank, number


@dataclass(frozen=True, slots=True)
class _Value:
    value: Any

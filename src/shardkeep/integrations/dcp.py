"""How does code that calls torch.distributed.checkpoint get checkpoints of shardkeep?

By one argument: `dcp.save(state, storage_writer=ShardkeepWriter(path))` and
`dcp.load(state, storage_reader=ShardkeepReader(path))`. DCP's planners decide what each rank
writes and reads, and its collectives carry what the ranks say; files, digests and the manifest
that commits them are ours.
"""

# torch leaves futures and the classes of its checkpoints in part untyped.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import dataclasses
import io
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from shardkeep.boxes import Box
from shardkeep.errors import ConflictError, InvalidError, ShardkeepError, UnsupportedError
from shardkeep.integrations.dcp_manifest import (
    Written,
    WrittenTensor,
    WrittenValue,
    dtype_name,
    leaves_of,
    manifest_of,
    metadata_of,
)
from shardkeep.manifest import (
    ArrayNode,
    FileRecord,
    Json,
    Node,
    PerRankNode,
    TensorNode,
    check_json,
    chunk_name,
    decode_manifest,
    encode_manifest,
    encode_tree,
    file_name,
    lock_name,
    new_save_id,
    report_name,
)
from shardkeep.state.building import build_state
from shardkeep.state.dtypes import TORCH_DTYPES
from shardkeep.state.frozen import Memory
from shardkeep.state.keeping import keep_state
from shardkeep.state.restoring import Slot
from shardkeep.storage import CanHold, Storage, open_storage
from shardkeep.transfer.commit import (
    MANIFEST,
    commit,
    committed_manifest,
    remove_files,
    require_visible,
)
from shardkeep.transfer.filling import fill_slots
from shardkeep.transfer.opened import Opened
from shardkeep.transfer.own_values import own_value
from shardkeep.transfer.progress import Meter
from shardkeep.transfer.threads import thread_count
from shardkeep.transfer.write import Job, OutChunk, write_files
from shardkeep.translate.dcp_reading import unreadable
from shardkeep.translate.opening import open_source

PathLike = str | os.PathLike[str]

# Below this, a second file costs more than a second thread gains.
_MIN_NBYTES_FOR_FILES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class _Task:
    """What the coordinator tells a rank."""

    save_id: str
    rank: int


@dataclass(frozen=True, slots=True)
class _Note:
    """What a rank tells the coordinator of one item; its first has the files, too."""

    content: WrittenTensor | WrittenValue
    host: str
    files: tuple[FileRecord, ...] = ()


# Planners that reuse their last plan hand out the id of the last save, too.
_used_ids: set[str] = set()


class ShardkeepWriter(StorageWriter):
    """For `dcp.save` and `dcp.async_save`: writes a checkpoint of shardkeep at `path`.

    It appears when all of it is there, and takes the place of an earlier one only with
    `overwrite`. Values that are no tensors must be such as `shardkeep.save` keeps: nothing is
    pickled.
    """

    def __init__(
        self,
        path: PathLike,
        *,
        overwrite: bool = False,
        durable: bool = True,
        threads: int | None = None,
        metadata: Mapping[str, Json] | None = None,
    ) -> None:
        super().__init__()
        check_json(dict(metadata or {}), "metadata")
        self._path = os.fspath(path)
        self._overwrite = overwrite
        self._durable = durable
        self._threads = thread_count(threads)
        self._metadata = dict(metadata or {})
        self._world = 1
        self._save_id = ""
        self._replaced: bytes | None = None
        self._holding: ExitStack | None = None
        """On the coordinator, while a save is under way: its lock."""

    @property
    def checkpoint_id(self) -> str:
        return self._path

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: PathLike) -> bool:
        return True

    def reset(self, checkpoint_id: PathLike | None = None) -> None:
        # Of a save that failed on some rank, nobody hears the end.
        self._let_go()
        if checkpoint_id:
            self._path = os.fspath(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if not kwargs.get("use_collectives", True):
            raise UnsupportedError(
                "use_collectives=False makes a checkpoint of each rank's own, which cannot appear "
                "at once; leave it out"
            )

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        with self._storage() as storage:
            self._replaced = committed_manifest(storage)
            if self._replaced is not None and not self._overwrite:
                raise ConflictError(
                    f"{storage.location} holds a checkpoint already; save to another path, or "
                    "pass overwrite=True to replace it"
                )
        self._save_id, self._world = new_save_id(), len(plans)
        self._hold()
        return [
            dataclasses.replace(plan, storage_data=_Task(self._save_id, rank))
            for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        task = plan.storage_data
        if not isinstance(task, _Task) or task.save_id in _used_ids:
            raise UnsupportedError(
                "the planner reuses an earlier plan, and with it the name of an earlier save; "
                "make it with enable_plan_caching=False"
            )
        _used_ids.add(task.save_id)
        with self._storage() as storage:
            results = _RankWriter(storage, task, planner, self._threads).write(plan.items)
            storage.sync()
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        try:
            self._finish(metadata, results)
        finally:
            self._let_go()

    def _finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        with self._storage() as storage:
            written = _gathered(self._save_id, self._world, results)
            hosts = {
                rank: one.storage_data.host
                for rank, notes in enumerate(results)
                for one in notes[:1]
            }
            hosts.setdefault(0, socket.gethostname())
            require_visible(storage, self._save_id, written.files, hosts, 0)
            manifest = encode_manifest(manifest_of(metadata, written, self._metadata))
            commit(storage, manifest, self._replaced)
            # The checkpoint stands: from here on nothing may make the save fail.
            _remove_replaced(storage, self._replaced)

    def _hold(self) -> None:
        """Show that a save is under way here, so that prune leaves its files alone."""
        self._let_go()
        with ExitStack() as holding:
            storage = holding.enter_context(self._storage())
            if isinstance(storage, CanHold):
                holding.enter_context(storage.hold(lock_name(self._save_id)))
            self._holding = holding.pop_all()

    def _let_go(self) -> None:
        if self._holding is not None:
            self._holding.close()
            self._holding = None

    def _storage(self) -> Storage:
        return open_storage(self._path, create=True, durable=self._durable)


def _gathered(save_id: str, world: int, results: Sequence[Sequence[WriteResult]]) -> Written:
    written = Written(save_id, world, [], {}, {})
    chunks: dict[tuple[str, tuple[int, ...]], tuple[int, int]] = {}
    values: dict[str, WrittenValue] = {}
    for result in (one for notes in results for one in notes):
        note, index = result.storage_data, result.index
        written.files.extend(note.files)
        if isinstance(note.content, WrittenValue):
            values[index.fqn] = note.content
        else:
            chunks[index.fqn, tuple(index.offset or ())] = note.content.place
    return dataclasses.replace(written, chunks=chunks, values=values)


def _remove_replaced(storage: Storage, replaced: bytes | None) -> None:
    if replaced is None:
        return
    try:
        old = decode_manifest(replaced, where=MANIFEST)
    except ShardkeepError:
        # What was replaced was damaged: its files cannot be told, prune finds them.
        return
    names = [file_name(old.save_id, file.rank, file.number) for file in old.files]
    remove_files(storage, [*names, report_name(old.save_id)])


class _RankWriter:
    """One rank's part of a save."""

    def __init__(self, storage: Storage, task: _Task, planner: SavePlanner, threads: int) -> None:
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
                _Note(content, host, files if at == 0 else ()),
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


class ShardkeepReader(StorageReader):
    """For `dcp.load`: reads the checkpoint at `path`, of shardkeep or of a format that it knows.

    Every byte of ours is checked. A folder that DCP itself wrote is read without unpickling it.
    """

    def __init__(self, path: PathLike, *, threads: int | None = None) -> None:
        super().__init__()
        self._path = os.fspath(path)
        self._threads = thread_count(threads)
        self._rank = 0
        self._save_id = ""

    @property
    def checkpoint_id(self) -> str:
        return self._path

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: PathLike) -> bool:
        return True

    def reset(self, checkpoint_id: PathLike | None = None) -> None:
        if checkpoint_id:
            self._path = os.fspath(checkpoint_id)

    # Without **kwargs: with it, DCP would ask again for metadata of this rank's own.
    def read_metadata(self) -> Metadata:  # pyright: ignore[reportIncompatibleMethodOverride]
        opened = open_source(self._path)
        try:
            self._save_id = opened.manifest.save_id
            return metadata_of(opened.manifest, leaves_of(opened.manifest))
        finally:
            opened.storage.close()

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        self._rank = kwargs.get("rank") or 0

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return dataclasses.replace(plan, storage_data=self._save_id)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        if len({plan.storage_data for plan in plans}) > 1:
            raise ConflictError(
                f"ranks have found different saves at {self._path}: it was replaced meanwhile, or "
                "they do not share the storage; load again"
            )
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        opened = open_source(self._path)
        try:
            if opened.manifest.save_id != self._save_id:
                raise ConflictError(f"{self._path} was replaced while it was loaded; load again")
            _RankReader(opened, planner, self._rank, self._threads).read(plan.items)
        finally:
            opened.storage.close()
        done: Future[None] = Future()
        done.set_result(None)
        return done


class _RankReader:
    """One rank's part of a load."""

    def __init__(self, opened: Opened, planner: LoadPlanner, rank: int, threads: int) -> None:
        self._opened = opened
        self._planner = planner
        self._rank = rank
        self._threads = threads
        self._leaves = leaves_of(opened.manifest)

    def read(self, items: Sequence[ReadItem]) -> None:
        wanted = [(item, self._slot(item)) for item in items if item.type == LoadItemType.TENSOR]
        self._fill([slot for _, slot in wanted])
        for item, slot in wanted:
            self._planner.commit_tensor(item, slot.memory)
        for item in items:
            if item.type == LoadItemType.BYTE_IO:
                self._planner.load_bytes(item, self._bytes(item.storage_index.fqn))

    def _slot(self, item: ReadItem) -> Slot:
        node = self._leaves[item.storage_index.fqn][1]
        if not isinstance(node, TensorNode | ArrayNode):
            raise InvalidError(f"{item.storage_index.fqn!r} is no tensor in {self._location}")
        memory = self._planner.resolve_tensor(item).detach()
        chunk = item.storage_index.offset or (0,) * len(item.lengths)
        start = tuple(a + b for a, b in zip(chunk, item.storage_offsets, strict=True))
        stop = tuple(a + n for a, n in zip(start, item.lengths, strict=True))
        if tuple(memory.shape) != tuple(item.lengths):
            raise InvalidError(
                f"{item.dest_index.fqn!r} has a place of shape {tuple(memory.shape)} for what is "
                f"of shape {tuple(item.lengths)}"
            )
        return Slot.of(self._opened.manifest.tensors[node.index], Box(start, stop), memory)

    @property
    def _location(self) -> str:
        return self._opened.storage.location

    def _fill(self, slots: Sequence[Slot]) -> None:
        with Meter("loading", None, show=False) as meter:
            fill_slots(self._opened, slots, threads=self._threads, verify=True, meter=meter)

    def _bytes(self, key: str) -> io.BytesIO:
        """A value as DCP's planners want it: they unpickle what was pickled here, of plain data."""
        pickled = io.BytesIO()
        torch.save(self._value(self._leaves[key][1]), pickled)
        pickled.seek(0)
        return pickled

    def _value(self, node: Node) -> Any:
        if isinstance(node, PerRankNode):
            return own_value(self._opened, node.key, self._rank)
        return build_state(node, self._whole, str)

    def _whole(self, number: int) -> torch.Tensor:
        record = self._opened.manifest.tensors[number]
        made = torch.empty(record.shape, dtype=TORCH_DTYPES[record.dtype])
        self._fill([Slot.of(record, Box.whole(record.shape), made)])
        return made

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
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from shardkeep.errors import ConflictError, ShardkeepError, UnsupportedError
from shardkeep.integrations.dcp_manifest import (
    Written,
    WrittenValue,
    leaves_of,
    manifest_of,
    metadata_of,
)
from shardkeep.integrations.dcp_rank_reading import RankReader
from shardkeep.integrations.dcp_rank_writing import RankWriter, Task
from shardkeep.manifest import (
    Json,
    check_json,
    decode_manifest,
    encode_manifest,
    file_name,
    lock_name,
    new_save_id,
    report_name,
)
from shardkeep.storage import CanHold, Storage, open_storage
from shardkeep.transfer.commit import (
    MANIFEST,
    commit,
    committed_manifest,
    remove_files,
    require_visible,
)
from shardkeep.transfer.threads import thread_count
from shardkeep.translate.opening import open_source

PathLike = str | os.PathLike[str]

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
            dataclasses.replace(plan, storage_data=Task(self._save_id, rank))
            for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        task = plan.storage_data
        if not isinstance(task, Task) or task.save_id in _used_ids:
            raise UnsupportedError(
                "the planner reuses an earlier plan, and with it the name of an earlier save; "
                "make it with enable_plan_caching=False"
            )
        _used_ids.add(task.save_id)
        with self._storage() as storage:
            results = RankWriter(storage, task, planner, self._threads).write(plan.items)
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
            RankReader(opened, planner, self._rank, self._threads).read(plan.items)
        finally:
            opened.storage.close()
        done: Future[None] = Future()
        done.set_result(None)
        return done

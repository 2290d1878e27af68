"""How does a test save from many ranks and load into many, within one process?

Ranks are threads that agree over one HashStore; what each holds is cut from a whole tensor by the
oracle of `layout_strategies`, plain NumPy indexing.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from shardkeep.layouts import Layout
from shardkeep.manifest import (
    MANIFEST_NAME,
    DictNode,
    FileRecord,
    FileTable,
    Manifest,
    TensorNode,
    chunk_name,
    encode_manifest,
    new_save_id,
)
from shardkeep.plan import Entry, digest_view
from shardkeep.plan.assign import plan_divisions
from shardkeep.plan.grids import GridTable, tensor_records
from shardkeep.plan.settle import SaveView, Settlement, settle
from shardkeep.state.dtypes import DTYPE_NAMES
from shardkeep.state.keeping import KeptState
from shardkeep.state.restoring import Slot
from shardkeep.storage import LocalStorage, MemoryStorage, Storage, forget_memory
from shardkeep.testing.layout_strategies import held_by, raw
from shardkeep.transfer.agreement import (
    Agreement,
    decode_agreement,
    encode_agreement,
    make_agreement,
)
from shardkeep.transfer.council import StoreCouncil
from shardkeep.transfer.filling import fill_slots
from shardkeep.transfer.opened import open_committed
from shardkeep.transfer.planning import tensors_to_write
from shardkeep.transfer.progress import Meter
from shardkeep.transfer.save import SaveOptions, SaveOutcome, Timings, run_save
from shardkeep.transfer.view_codec import encode_save_view
from shardkeep.transfer.write import Job, OutChunk, write_files

T = TypeVar("T")
_numbers = itertools.count()


def new_store() -> Any:
    return dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]


def fresh_memory() -> MemoryStorage:
    """An empty storage in memory that no other test has."""
    return MemoryStorage(f"test-{next(_numbers)}")


@contextmanager
def memory() -> Iterator[MemoryStorage]:
    """An empty storage in memory, forgotten at the end."""
    storage = fresh_memory()
    try:
        yield storage
    finally:
        forget_memory(storage.location.removeprefix("memory://"))


def run_ranks(
    act: Callable[[int, StoreCouncil], T],
    ranks: Sequence[int] | int,
    *,
    store: Any = None,
    timeout: float = 20.0,
    absent: Sequence[int] = (),
) -> dict[int, T | BaseException]:
    """What `act(rank, council)` returned or raised, by rank; `absent` ranks never come."""
    everyone = tuple(range(ranks)) if isinstance(ranks, int) else tuple(ranks)
    store, topic = store or new_store(), f"topic-{next(_numbers)}"
    found: dict[int, T | BaseException] = {}

    def run(rank: int) -> None:
        council = StoreCouncil(store, everyone, rank, topic=topic, timeout=timeout)
        try:
            found[rank] = act(rank, council)
        except BaseException as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(r,)) for r in everyone if r not in absent]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return dict(sorted(found.items()))


def all_well(found: Mapping[int, T | BaseException]) -> dict[int, T]:
    """The results of all ranks; the first error if any raised."""
    for result in found.values():
        if isinstance(result, BaseException):
            raise result
    return found  # type: ignore[return-value]


@dataclass(frozen=True)
class Laid:
    """A whole tensor and who holds what of it."""

    whole: torch.Tensor
    layout: Layout


def as_tensor(cells: np.ndarray[Any, Any], dtype: torch.dtype, *, reverse: bool) -> torch.Tensor:
    """Cells of bytes as a tensor of its own; `reverse`: its memory lies in column order."""
    flat = torch.from_numpy(cells.copy().reshape(-1))
    made = flat.view(dtype).reshape(cells.shape[:-1])
    if reverse and made.ndim > 1:
        dims = list(reversed(range(made.ndim)))
        return made.permute(dims).contiguous().permute(dims)
    return made


def kept_by(rank: int, tensors: Mapping[str, Laid], *, reverse: bool = False) -> KeptState:
    """What `rank` would keep; it brings the tensors in whose layouts it takes part."""
    mine = {key: laid for key, laid in tensors.items() if rank in laid.layout.ranks}
    return KeptState(
        DictNode(tuple((key, TensorNode(number)) for number, key in enumerate(mine))),
        {
            key: Entry(DTYPE_NAMES[laid.whole.dtype], tuple(laid.whole.shape), laid.layout)
            for key, laid in mine.items()
        },
        {
            key: [
                as_tensor(part, laid.whole.dtype, reverse=reverse)
                for part in held_by(laid.layout, rank, raw(laid.whole))
            ]
            for key, laid in mine.items()
        },
    )


def options(**changed: Any) -> SaveOptions:
    meter = Meter("saving", None, show=False)
    made: dict[str, Any] = {
        "overwrite": False,
        "threads": 1,
        "check_replicas": "all",
        "metadata": {},
        "meter": meter,
    }
    return SaveOptions(**{**made, **changed})


def save_kept(
    keep: Callable[[int], KeptState],
    storage: Storage,
    world: int,
    *,
    store: Any = None,
    timeout: float = 20.0,
    **changed: Any,
) -> dict[int, SaveOutcome | BaseException]:
    """Save what `keep(rank)` gives from all ranks of the world."""

    def act(rank: int, council: StoreCouncil) -> SaveOutcome:
        return run_save(lambda: (keep(rank), storage), council, options(**changed), Timings())

    return run_ranks(act, world, store=store, timeout=timeout)


def save_in_turn(
    keep: Callable[[int], KeptState], storage: Storage, world: int, *, file_count: int
) -> Manifest:
    """The same without threads: what each rank would decide and write, one after the other."""
    kept = {rank: keep(rank) for rank in range(world)}
    views: dict[str, tuple[SaveView, list[int]]] = {}
    for rank, state in kept.items():
        view = SaveView(state.tree, state.entries)
        digest = digest_view(encode_save_view(view)).hex()
        views.setdefault(digest, (view, []))[1].append(rank)
    settlement = settle(list(views.values()))
    ranks = [group for _, group in views.values()]
    made = make_agreement(new_save_id(), file_count, list(views), ranks, settlement)
    agreement = decode_agreement(encode_agreement(made))
    records = [
        record
        for digest, (view, group) in views.items()
        for rank in group
        for record in _write_rank(kept[rank], agreement, view, digest, rank, storage)
    ]
    manifest = _manifest(agreement, settlement, records, world)
    assert storage.put_if_absent(MANIFEST_NAME, encode_manifest(manifest))
    return manifest


def _write_rank(
    kept: KeptState, agreement: Agreement, view: SaveView, digest: str, rank: int, storage: Storage
) -> list[FileRecord]:
    layouts = agreement.layouts(view, digest)
    divisions = plan_divisions(
        tensors_to_write(kept.entries, layouts), file_count=agreement.file_count
    )
    chunks = [
        OutChunk(
            chunk_name(key, chunk.box, kept.entries[key].shape),
            kept.entries[key].dtype,
            kept.memory[key][chunk.buffer][chunk.place.slices()],
            chunk.number,
        )
        for key, division in divisions.items()
        for chunk in division.chunks_of(rank)
    ]
    job = Job(agreement.save_id, rank, chunks, kept.per_rank)
    return write_files(storage, job, Meter("saving", None, show=False))


def _manifest(
    agreement: Agreement, settlement: Settlement, records: Sequence[FileRecord], world: int
) -> Manifest:
    files = FileTable.of(records)
    table = GridTable({(file.rank, file.number): at for at, file in enumerate(files)})
    divisions = plan_divisions(
        tensors_to_write(settlement.entries, settlement.layouts), file_count=agreement.file_count
    )
    tensors = tensor_records(settlement.entries, divisions, table)
    return Manifest(
        save_id=agreement.save_id,
        world=world,
        tree=settlement.tree,
        tensors=tensors,
        grids=tuple(table.grids),
        files=files,
    )


def load_held(
    storage: Storage, tensors: Mapping[str, Laid], rank: int, *, reverse: bool = False
) -> dict[str, list[np.ndarray[Any, Any]]]:
    """What `rank` has in its memory after loading into these layouts, as cells of bytes."""
    opened = open_committed(storage)
    manifest = opened.manifest
    buffers: dict[str, list[torch.Tensor]] = {}
    slots: list[Slot] = []
    for key, laid in tensors.items():
        buffers[key] = [
            as_tensor(np.full_like(part, 0xA5), laid.whole.dtype, reverse=reverse)
            for part in held_by(laid.layout, rank, raw(laid.whole))
        ]
        slots += [
            Slot.of(manifest.tensor(key), part.box, buffers[key][part.buffer][part.place.slices()])
            for part in laid.layout.parts_of(rank)
        ]
    fill_slots(
        opened,
        slots,
        threads=1,
        verify=True,
        meter=Meter("loading", None, show=False),
    )
    return {key: [raw(part) for part in parts] for key, parts in buffers.items()}


def data_files(storage: Storage) -> dict[str, bytes]:
    """The content of each data file."""
    return {
        entry.key: storage.read(entry.key, 0, entry.nbytes)
        for entry in storage.list()
        if entry.key.endswith(".safetensors")
    }


def names(storage: Storage | str) -> list[str]:
    """What lies in a storage, temporary names among it; not the reports, which may be late."""
    if isinstance(storage, str):
        with LocalStorage(storage) as opened:
            return names(opened)
    return [entry.key for entry in storage.list() if not entry.key.endswith("-report.json")]

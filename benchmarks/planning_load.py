"""How long does a rank plan that loads what twice as many ranks saved?"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from benchmarks.planned_models import Parallelism, forget, view_of
from shardkeep.manifest import (
    FileRecord,
    FileTable,
    Manifest,
    chunk_name,
    file_name,
    header_digest,
    plan_header,
)
from shardkeep.plan import Entry
from shardkeep.plan.assign import plan_divisions
from shardkeep.plan.divide import Division
from shardkeep.plan.grids import GridTable, tensor_records
from shardkeep.transfer.collecting import gc_paused
from shardkeep.transfer.load import Want, plan_load
from shardkeep.transfer.open_manifest import Headers
from shardkeep.transfer.opened import Opened
from shardkeep.transfer.planning import tensors_to_write
from shardkeep.transfer.write import BLOCK_NBYTES

SAVE_ID = "0123456789abcdef"
FILES = 2


@dataclass(frozen=True)
class HeadersOnly:
    """A storage that has the headers of some files, and claims the data."""

    heads: Mapping[str, bytes]
    sizes: Mapping[str, int]
    location: str = "memory"

    def read(self, key: str, offset: int, nbytes: int) -> bytes:
        return self.heads[key][offset : offset + nbytes]

    def get(self, key: str, *, max_nbytes: int) -> bytes:
        return self.heads[key]

    def size(self, key: str) -> int:
        return self.sizes[key]

    def read_into(self, key: str, offset: int, buffers: Sequence[Any]) -> None:
        raise AssertionError("no data are read")

    def close(self) -> None: ...


@lru_cache(8)
def checkpoint(how: Parallelism, ranks: int) -> tuple[Manifest, HeadersOnly]:
    """What a job would have saved, with the headers that one rank of the smaller job reads."""
    entries = how.entries(how.mesh(ranks))
    layouts = {key: entry.layout for key, entry in entries.items() if entry.layout is not None}
    divisions = plan_divisions(tensors_to_write(entries, layouts), file_count=FILES)
    heads: dict[str, bytes] = {}
    sizes: dict[str, int] = {}
    records: list[FileRecord] = []
    wanted = _sources(how, ranks)
    for rank in range(ranks):
        for number in range(FILES):
            if rank not in wanted:
                records.append(FileRecord(rank, number, 4096, 4096, hash((rank, number)) % 2**63))
                continue
            head, nbytes = _head(entries, divisions, rank, number)
            name = file_name(SAVE_ID, rank, number)
            heads[name], sizes[name] = head, len(head) + nbytes
            records.append(FileRecord(rank, number, sizes[name], len(head), header_digest(head)))
    files = FileTable.of(records)
    index = {(file.rank, file.number): at for at, file in enumerate(files)}
    table = GridTable(index)
    tensors = tensor_records(entries, divisions, table)
    tree = view_of(entries).tree
    manifest = Manifest(SAVE_ID, ranks, tree, tensors, tuple(table.grids), files)
    return manifest, HeadersOnly(heads, sizes)


def _sources(how: Parallelism, ranks: int) -> Sequence[int]:
    """All ranks that may have written what the first rank of the smaller job wants."""
    if how.name == "HSDP":
        group = ranks // 4
        return [replica * group + at for replica in range(4) for at in range(min(8, group))]
    return range(min(ranks, 64))


def _head(
    entries: Mapping[str, Entry], divisions: Mapping[str, Division], rank: int, number: int
) -> tuple[bytes, int]:
    """A file's header, with digests of nothing, and the bytes of its data."""
    specs = []
    for key, division in divisions.items():
        for chunk in division.chunks_of(rank):
            if chunk.number == number:
                name = chunk_name(key, chunk.box, entries[key].shape)
                specs.append((name, "BF16", chunk.box.shape, 2 * chunk.box.numel))
    nbytes = sum(spec[-1] for spec in specs)
    plan = plan_header(
        specs,
        save_id=SAVE_ID,
        rank=rank,
        number=number,
        block_nbytes=BLOCK_NBYTES,
        data_nbytes=nbytes,
        per_rank={},
    )
    return plan.encode([0] * plan.block_count), nbytes


def load_seconds(how: Parallelism, ranks: int) -> float:
    """CPU seconds of rank 0 of `ranks // 2`: what to read of which file, headers included."""
    manifest, storage = checkpoint(how, ranks)
    entries = how.entries(how.mesh(ranks // 2))
    layouts = {key: entry.layout for key, entry in entries.items() if entry.layout is not None}
    # One piece of memory serves all: nothing is read into it.
    memory = np.empty(max(math.prod(one.buffer_shapes_of(0)[0]) for one in layouts.values()), "u2")
    forget()
    start = time.process_time()
    with gc_paused():
        opened = Opened(storage, manifest, Headers(storage, manifest), lambda: manifest.save_id)
        wants = [
            Want(manifest.by_key[key], part.box, memory[: part.box.numel].reshape(part.box.shape))
            for key, layout in layouts.items()
            for part in layout.parts_of(0)
        ]
        plans = list(plan_load(opened, wants, threads=1))
    seconds = time.process_time() - start
    if sum(plan.nbytes for plan in plans) < sum(want.array.nbytes for want in wants):
        raise AssertionError("not all that is wanted is read")
    return seconds

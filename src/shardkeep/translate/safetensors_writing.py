"""How does a checkpoint become safetensors files, in bounded memory and checked?

Bytes go in batches from the checkpoint's files to one buffer of each thread, are cast there if
that is wanted, and from there to the file. What was written is read again at the end, and its
digests are compared.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from shardkeep.errors import CorruptError, InvalidError
from shardkeep.manifest import itemsize
from shardkeep.storage.local import LocalStorage
from shardkeep.storage.protocols import CanReadInto, Sink
from shardkeep.storage.rooms import empty_room
from shardkeep.transfer.load import BIT_DTYPES, WINDOW_NBYTES, Want, fill
from shardkeep.transfer.opened import Opened
from shardkeep.transfer.progress import Meter
from shardkeep.transfer.read import Array
from shardkeep.transfer.team import ALONE, Team
from shardkeep.translate.casting import cast_bits
from shardkeep.translate.export_plan import (
    Batch,
    OutFile,
    Part,
    Rename,
    Selection,
    plan_batches,
    plan_files,
    select_tensors,
)
from shardkeep.translate.export_target import (
    hidden_place,
    require_ending,
    require_free,
    require_space,
    staged,
)
from shardkeep.translate.safetensors_files import ENDING, INDEX_ENDING, MAIN

_MAX_BATCH_NBYTES = 16 * 2**20
_MIN_BATCH_NBYTES = 2**20
# Of a batch that is cast: as stored, as numbers, and what rounding takes.
_CAST_COPIES = 6


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What an export wrote."""

    path: str
    files: tuple[str, ...]
    tensors: int
    nbytes: int
    """Of all files."""
    cast: tuple[str, ...]
    """Tensors that have another dtype than in the checkpoint, by their new names."""
    overflowed: tuple[str, ...]
    """Tensors of which finite values became infinite by the cast."""
    tied: dict[str, str]
    """Names of tied tensors that were left out, each with the name that stands for it."""
    skipped: tuple[str, ...]
    """What was asked for and is no tensor, or was left out by `rename`."""
    seconds: float


def export_safetensors(
    source: Opened,
    dest: Path,
    *,
    single_file: bool,
    max_shard_nbytes: int,
    keys: Sequence[str] | None,
    prefix: str,
    rename: Rename | None,
    dtype: str | None,
    max_memory_nbytes: int,
    threads: int,
    force: bool,
    verify: bool,
    meter: Meter,
    team: Team = ALONE,
) -> ExportReport:
    """Write tensors of a checkpoint as `dest`: one file, or a folder as transformers has it.

    All that can be known to go wrong is found before the first byte is written. A team shares the
    files; rank 0 puts them in their place when all are written.
    """
    started = time.perf_counter()
    selection = select_tensors(
        source.manifest, keys=keys, prefix=prefix, rename=rename, dtype=dtype
    )
    files = _files(selection, dest if single_file else None, max_shard_nbytes)
    is_cast = any(tensor.is_cast for tensor in selection.tensors)
    budget = plan_memory(max_memory_nbytes, threads, is_cast=is_cast)
    nbytes = [file.nbytes for file in files]

    def look() -> None:
        require_free(dest, is_file=single_file, force=force)
        require_space(dest, sum(nbytes))

    team.together("export (plan)", look)
    place = team.tell("export (place)", str(hidden_place(dest, is_file=single_file)))
    with ExitStack() as stack:

        def write() -> list[str]:
            target = (
                staged(dest, is_file=single_file, force=force, hidden=Path(place))
                if team.leads
                else LocalStorage(place, create=True)
            )
            storage = stack.enter_context(target)
            copier = _Copier(source, storage, budget, meter)
            copier.run(team.share(files, nbytes), verify=verify)
            if len(files) > 1 and team.leads:
                _write_index(storage, files, selection)
            storage.sync()
            return sorted(copier.overflowed)

        overflowed = team.gather("export (write)", write, list[str]) or []
        # On rank 0 this is where it appears.
        team.together("export (publish)", stack.pop_all().close)
    return ExportReport(
        str(dest),
        tuple(file.name for file in files),
        len(selection.tensors),
        sum(file.nbytes for file in files),
        tuple(tensor.name for tensor in selection.tensors if tensor.is_cast),
        tuple(sorted(name for names in overflowed for name in names)),
        dict(selection.tied),
        selection.skipped,
        time.perf_counter() - started,
    )


def _files(selection: Selection, single: Path | None, max_shard_nbytes: int) -> list[OutFile]:
    if single is None:
        return plan_files(selection, max_shard_nbytes=max_shard_nbytes, names=shard_name)
    require_ending(single, ENDING)
    total = sum(tensor.nbytes for tensor in selection.tensors)
    return plan_files(selection, max_shard_nbytes=max(1, total), names=lambda _i, _n: single.name)


def shard_name(number: int, count: int) -> str:
    """The name of file `number` of `count` of a Hugging Face model.

    >>> shard_name(1, 1), shard_name(2, 3)
    ('model.safetensors', 'model-00002-of-00003.safetensors')
    """
    return f"{MAIN}-{number:05d}-of-{count:05d}{ENDING}" if count > 1 else f"{MAIN}{ENDING}"


@dataclass(frozen=True, slots=True)
class Budget:
    """How many threads work at once, and how much each takes on at a time."""

    threads: int
    batch_nbytes: int


def plan_memory(max_memory_nbytes: int, threads: int, *, is_cast: bool) -> Budget:
    """The threads and batches that stay within the memory; fewer threads if need be.

    >>> plan_memory(256 * 2**20, 2, is_cast=False)
    Budget(threads=2, batch_nbytes=16777216)
    >>> plan_memory(24 * 2**20, 8, is_cast=False)
    Budget(threads=2, batch_nbytes=4194304)
    """
    if threads < 1:
        raise InvalidError(f"threads must be at least 1, got {threads}")
    copies = 1 + (_CAST_COPIES if is_cast else 0)
    # Besides its batch, a thread has a window for chunks that lie scattered.
    least = WINDOW_NBYTES + copies * _MIN_BATCH_NBYTES
    if max_memory_nbytes < least:
        raise InvalidError(
            f"an export takes at least {-(-least // 2**20)} MiB of memory, max_memory is "
            f"{max_memory_nbytes} bytes"
        )
    threads = min(threads, max_memory_nbytes // least)
    room = (max_memory_nbytes // threads - WINDOW_NBYTES) // copies
    return Budget(threads, min(room, _MAX_BATCH_NBYTES))


def _write_index(storage: LocalStorage, files: Sequence[OutFile], selection: Selection) -> None:
    weight_map = {tensor.name: file.name for file in files for tensor in file.tensors}
    total = sum(tensor.nbytes for tensor in selection.tensors)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    text = msgspec.json.format(msgspec.json.encode(index), indent=2) + b"\n"
    with storage.create(f"{MAIN}{INDEX_ENDING}") as sink:
        sink.write(0, [text])


class _Copier:
    """Brings batches to their files, with several threads; each has buffers that it reuses."""

    def __init__(self, source: Opened, storage: LocalStorage, budget: Budget, meter: Meter) -> None:
        self._source = source
        self._storage = storage
        self._budget = budget
        self._meter = meter
        self._local = threading.local()
        self._quiet = Meter("exporting", None, show=False)
        self.overflowed: set[str] = set()

    def run(self, files: Sequence[OutFile], *, verify: bool) -> None:
        """Write the files, and read them again if `verify`."""
        self._meter.expect(sum(file.nbytes for file in files) * (2 if verify else 1))
        for file in files:
            batches = list(plan_batches(file, self._budget.batch_nbytes))
            with self._storage.create(file.name) as sink:
                sink.write(0, [file.header])
                self._meter.add(len(file.header))
                digests = self._all(lambda batch: self._copy(batch, sink), batches)
            if verify:
                self._check(file, batches, digests)

    def _all(self, act: Callable[[Batch], int], batches: Iterable[Batch]) -> list[int]:
        """What `act` gives for each batch. After an error no further one is begun."""
        with ThreadPoolExecutor(self._budget.threads, "shardkeep-export") as pool:
            acts = [pool.submit(act, batch) for batch in batches]
            try:
                wait(acts, return_when=FIRST_EXCEPTION)
            finally:
                pool.shutdown(cancel_futures=True)
        return [one.result() for one in acts if not one.cancelled()]

    def _copy(self, batch: Batch, sink: Sink) -> int:
        """Write a batch; the digest of its bytes."""
        buffer = self._buffer(batch.nbytes)
        places = [_place(buffer, part) for part in batch.parts]
        wants = [
            Want(part.tensor.record, part.box, _stored(part) if part.tensor.is_cast else place)
            for part, place in zip(batch.parts, places, strict=True)
        ]
        fill(self._source, wants, threads=1, verify=True, meter=self._quiet)
        for part, place, want in zip(batch.parts, places, wants, strict=True):
            tensor = part.tensor
            if tensor.is_cast and cast_bits(want.array, want.record.dtype, tensor.dtype, place):
                self.overflowed.add(tensor.name)
        digest = xxhash.xxh3_64_intdigest(buffer.data)
        sink.write(batch.start, [buffer.data])
        self._meter.add(batch.nbytes)
        return digest

    def _check(self, file: OutFile, batches: Sequence[Batch], digests: Sequence[int]) -> None:
        """Raise unless the file on the disk is what was meant."""
        nbytes = self._storage.size(file.name)
        if (
            nbytes != file.nbytes
            or self._storage.read(file.name, 0, len(file.header)) != file.header
        ):
            raise CorruptError(
                f"{file.name}: its header or size is not what was written: check the disk, and "
                "export again"
            )
        self._meter.add(len(file.header))
        found = self._all(lambda batch: self._digest(self._storage, file.name, batch), batches)
        for batch, here, meant in zip(batches, found, digests, strict=True):
            if here != meant:
                names = ", ".join(part.tensor.name for part in batch.parts[:3])
                raise CorruptError(
                    f"{file.name}: {batch.nbytes} bytes from {batch.start} on ({names}) are not "
                    "what was written: check the disk, and export again"
                )

    def _digest(self, files: CanReadInto, name: str, batch: Batch) -> int:
        buffer = self._buffer(batch.nbytes)
        files.read_into(name, batch.start, [buffer.data])
        self._meter.add(batch.nbytes)
        return xxhash.xxh3_64_intdigest(buffer.data)

    def _buffer(self, nbytes: int) -> Array:
        kept: Array | None = getattr(self._local, "buffer", None)
        if kept is None or kept.nbytes < nbytes:
            kept = self._local.buffer = empty_room(nbytes)
        return kept[:nbytes]


def _bits(dtype: str) -> Any:
    return BIT_DTYPES[itemsize(dtype)]


def _place(buffer: Array, part: Part) -> Array:
    """Where in the batch a part goes."""
    view = buffer[part.start : part.start + part.nbytes].view(_bits(part.tensor.dtype))
    return view.reshape(part.box.shape)


def _stored(part: Part) -> Array:
    return empty_room(part.box.shape, _bits(part.tensor.record.dtype))

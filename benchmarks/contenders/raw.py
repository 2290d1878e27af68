"""What is the limit? The same bytes between the same memory and files, and nothing else."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import xxhash

from benchmarks.contenders.contender import Contender, Load
from benchmarks.figures import RAW
from benchmarks.stored_states import State, locals_of, share_of
from shardkeep.transfer.threads import thread_count
from shardkeep.transfer.write import BLOCK_NBYTES

# Larger calls are slower: what they write leaves the cache.
_CALL_NBYTES = 2**20
_CALL_BUFFERS = 256


class Raw(Contender):
    """Plain writes from tensor memory and reads into it, by as many threads as shardkeep has.

    Each has a file of its own.
    """

    name = RAW
    is_peer = False

    def __init__(self, *, durable: bool = False, recycled: bool = False) -> None:
        self.durable = durable
        self.keeps = recycled
        how = ", fsync" if durable else ", recycled files" if recycled else ""
        self.save_act = f"save{how}"

    def save(self, state: State, path: Path) -> None:
        path.mkdir(exist_ok=True)
        _in_threads(share_of(state), path, partial(_write, durable=self.durable))

    def load(self, state: State, path: Path) -> None:
        _in_threads(share_of(state), path, _read)

    def loads(self) -> Mapping[str, Load]:
        return {} if self.durable or self.keeps else {self.name: self.load}


class RawAndHashed(Raw):
    """Loads once more, hashing what it reads as a load that verifies must: the limit for those."""

    def loads(self) -> Mapping[str, Load]:
        return {**super().loads(), f"{RAW}, hashed": self._load_hashed}

    def _load_hashed(self, state: State, path: Path) -> None:
        _in_threads(share_of(state), path, partial(_read, seen=_hash))


class RawOfOthers(Raw):
    """Loads as many bytes as the state has here, from files that another number of ranks wrote."""

    def load(self, state: State, path: Path) -> None:
        files, size = sorted(path.iterdir()), dist.get_world_size() * thread_count(None)
        own = [files[n::size] for n in range(dist.get_rank(), size, dist.get_world_size())]
        with ThreadPoolExecutor(len(own)) as pool:
            list(pool.map(_read_all, own, shares(views_of(locals_of(state)), len(own))))


def _read_all(files: Sequence[Path], views: Sequence[memoryview]) -> None:
    """The files one after the other into the views; the last file may be read in part."""
    left = list(views)
    for file in files:
        nbytes, part = file.stat().st_size, list[memoryview]()
        while left and nbytes:
            view = left.pop(0)
            part.append(view[:nbytes])
            if len(view) > nbytes:
                left.insert(0, view[nbytes:])
            nbytes -= len(part[-1])
        _read(file, part)


def views_of(tensors: Sequence[torch.Tensor]) -> list[memoryview]:
    """The tensors' own memory as bytes."""
    return [tensor.view(-1).view(torch.uint8).numpy().data for tensor in tensors]


def _in_threads(tensors: Sequence[torch.Tensor], path: Path, act: Callable[..., None]) -> None:
    files = [path / f"{dist.get_rank()}-{number}" for number in range(thread_count(None))]
    with ThreadPoolExecutor(len(files)) as pool:
        list(pool.map(act, files, shares(views_of(tensors), len(files))))


def shares(views: Sequence[memoryview], count: int) -> list[list[memoryview]]:
    """As many bytes for each of so many threads; a view may be cut."""
    found: list[list[memoryview]] = [[]]
    fair = -(-sum(map(len, views)) // count)
    room = fair
    for view in views:
        rest = view
        while len(rest) > room:
            found[-1].append(rest[:room])
            found.append([])
            rest, room = rest[room:], fair
        found[-1].append(rest)
        room -= len(rest)
    return [*found, *([] for _ in range(count - len(found)))]


def _write(file: Path, views: Sequence[memoryview], *, durable: bool) -> None:
    fd = os.open(file, os.O_CREAT | os.O_WRONLY)
    for at, batch in _batches(views):
        if os.pwritev(fd, batch, at) != sum(map(len, batch)):
            raise OSError("a short write")
    if durable:
        os.fsync(fd)
    os.close(fd)


def _read(
    file: Path, views: Sequence[memoryview], seen: Callable[[memoryview], None] | None = None
) -> None:
    fd = os.open(file, os.O_RDONLY)
    for at, batch in _batches(views):
        if os.preadv(fd, batch, at) != sum(map(len, batch)):
            raise OSError("a short read")
        if seen is not None:
            for view in batch:
                seen(view)
    os.close(fd)


def _hash(view: memoryview) -> None:
    for at in range(0, len(view), BLOCK_NBYTES):
        xxhash.xxh3_64_digest(view[at : at + BLOCK_NBYTES])


def _batches(views: Sequence[memoryview]) -> list[tuple[int, Sequence[memoryview]]]:
    """Where each call starts, and its buffers."""
    made: list[tuple[int, Sequence[memoryview]]] = []
    batch, start, nbytes = list[memoryview](), 0, 0
    for view in _pieces(views):
        if batch and (nbytes + len(view) > _CALL_NBYTES or len(batch) == _CALL_BUFFERS):
            made.append((start, batch))
            batch, start, nbytes = [], start + nbytes, 0
        batch.append(view)
        nbytes += len(view)
    return [*made, (start, batch)] if batch else made


def _pieces(views: Sequence[memoryview]) -> Iterator[memoryview]:
    for view in views:
        for at in range(0, len(view), _CALL_NBYTES):
            yield view[at : at + _CALL_NBYTES]

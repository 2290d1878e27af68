"""How does each library save a state, and load it into tensors that are there?"""

# torch lists its public names nowhere that a type checker looks.
# pyright: reportPrivateImportUsage=false

import logging
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file

import shardkeep
from benchmarks.stored_states import State, locals_of

# One process without a group, files that DCP itself pickled: it says so at every call.
warnings.filterwarnings("ignore", module="torch.distributed.checkpoint")
logging.getLogger("torch.distributed.checkpoint").setLevel(logging.ERROR)
THREADS = 2


class Contender(ABC):
    name: str
    several_ranks = True

    @abstractmethod
    def save(self, state: State, path: Path) -> None: ...
    @abstractmethod
    def load(self, state: State, path: Path) -> None: ...


class Shardkeep(Contender):
    def __init__(self, *, durable: bool = False) -> None:
        self.name = "shardkeep" + (", fsync" if durable else "")
        self.durable = durable

    def save(self, state: State, path: Path) -> None:
        shardkeep.save(state, path, durable=self.durable)

    def load(self, state: State, path: Path) -> None:
        shardkeep.load(path, into=state)


class Dcp(Contender):
    def __init__(self, threads: int, *, durable: bool = False) -> None:
        self.name = f"DCP, {threads} threads" if threads > 1 else "DCP"
        self.name += ", fsync" if durable else ""
        self.threads = threads
        self.durable = durable

    def save(self, state: State, path: Path) -> None:
        writer = dcp.FileSystemWriter(path, sync_files=self.durable, thread_count=self.threads)
        dcp.save(state, storage_writer=writer, no_dist=dist.get_world_size() == 1)

    def load(self, state: State, path: Path) -> None:
        reader = dcp.FileSystemReader(path)
        dcp.load(state, storage_reader=reader, no_dist=dist.get_world_size() == 1)


class Safetensors(Contender):
    name = "safetensors"
    several_ranks = False

    def save(self, state: State, path: Path) -> None:
        save_file(state, path)

    def load(self, state: State, path: Path) -> None:
        for name, tensor in load_file(path).items():
            state[name].copy_(tensor)


class TorchSave(Contender):
    name = "torch.save, mmap"
    several_ranks = False

    def save(self, state: State, path: Path) -> None:
        torch.save(state, path)

    def load(self, state: State, path: Path) -> None:
        for name, tensor in torch.load(path, mmap=True).items():
            state[name].copy_(tensor)


class Raw(Contender):
    """The same bytes between the same memory and files, and nothing else: the limit."""

    def __init__(self, *, durable: bool = False) -> None:
        self.name = "raw" + (", fsync" if durable else "")
        self.durable = durable

    def save(self, state: State, path: Path) -> None:
        path.mkdir(exist_ok=True)
        _in_threads(state, path, partial(_write, durable=self.durable))

    def load(self, state: State, path: Path) -> None:
        _in_threads(state, path, _read)

    def load_as_many(self, state: State, path: Path) -> None:
        """As many bytes as the state has here, from files that another number of ranks wrote."""
        files, size = sorted(path.iterdir()), dist.get_world_size() * THREADS
        shares = [files[n::size] for n in range(dist.get_rank(), size, dist.get_world_size())]
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(_read_all, shares, _halves(_views(state))))


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


def _views(state: State) -> list[memoryview]:
    return [t.view(-1).view(torch.uint8).numpy().data for t in locals_of(state)]


def _in_threads(state: State, path: Path, act: Callable[..., None]) -> None:
    views = _views(state)
    files = [path / f"{dist.get_rank()}-{number}" for number in range(THREADS)]
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(act, files, _halves(views)))


def _halves(views: Sequence[memoryview]) -> list[list[memoryview]]:
    """As many bytes for each thread; a view may be cut."""
    half, first = sum(map(len, views)) // 2, list[memoryview]()
    for number, view in enumerate(views):
        if len(view) >= half:
            return [[*first, view[:half]], [view[half:], *views[number + 1 :]]]
        first.append(view)
        half -= len(view)
    return [first, []]


def _write(file: Path, views: Sequence[memoryview], *, durable: bool) -> None:
    fd = os.open(file, os.O_CREAT | os.O_WRONLY)
    for at, view in _batches(views):
        if os.pwritev(fd, view, at) != sum(map(len, view)):
            raise OSError("a short write")
    if durable:
        os.fsync(fd)
    os.close(fd)


def _read(file: Path, views: Sequence[memoryview]) -> None:
    fd = os.open(file, os.O_RDONLY)
    for at, view in _batches(views):
        if os.preadv(fd, view, at) != sum(map(len, view)):
            raise OSError("a short read")
    os.close(fd)


def _batches(views: Sequence[memoryview]) -> list[tuple[int, Sequence[memoryview]]]:
    """Where each call starts, and its buffers."""
    made: list[tuple[int, Sequence[memoryview]]] = []
    at = 0
    for first in range(0, len(views), 256):
        batch = views[first : first + 256]
        pieces = [batch] if sum(map(len, batch)) < 2**28 else [[view] for view in batch]
        for piece in pieces:
            made.append((at, piece))
            at += sum(map(len, piece))
    return made

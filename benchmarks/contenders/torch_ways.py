"""How is a state saved and loaded with what PyTorch has, and with safetensors?"""

# torch lists its public names nowhere that a type checker looks.
# pyright: reportPrivateImportUsage=false

import logging
import os
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file

from benchmarks.contenders.contender import Contender, Load
from benchmarks.figures import DCP
from benchmarks.stored_states import State

# One process without a group, files that DCP itself pickled: it says so at every call.
warnings.filterwarnings("ignore", module="torch.distributed.checkpoint")
logging.getLogger("torch.distributed.checkpoint").setLevel(logging.ERROR)


class Dcp(Contender):
    """torch.distributed.checkpoint; one thread is its default. Threads change saves alone."""

    is_peer = False

    def __init__(self, threads: int = 1, *, durable: bool = False) -> None:
        self.name = DCP if threads == 1 else f"{DCP}, {threads} threads"
        self.save_act = "save, fsync" if durable else "save"
        self.threads = threads
        self.durable = durable

    def save(self, state: State, path: Path) -> None:
        writer = dcp.FileSystemWriter(path, sync_files=self.durable, thread_count=self.threads)
        dcp.save(state, storage_writer=writer, no_dist=dist.get_world_size() == 1)

    def load(self, state: State, path: Path) -> None:
        reader = dcp.FileSystemReader(path)
        dcp.load(state, storage_reader=reader, no_dist=dist.get_world_size() == 1)

    def loads(self) -> Mapping[str, Load]:
        return {self.name: self.load} if self.threads == 1 and not self.durable else {}


class Safetensors(Contender):
    """One file; loaded through a memory map and a copy."""

    name = "safetensors"

    def __init__(self, *, durable: bool = False) -> None:
        self.save_act = "save, fsync" if durable else "save"
        self.durable = durable

    def save(self, state: State, path: Path) -> None:
        save_file(state, path)
        if self.durable:
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)

    def load(self, state: State, path: Path) -> None:
        for name, tensor in load_file(path).items():
            state[name].copy_(tensor)

    def loads(self) -> Mapping[str, Load]:
        return {} if self.durable else {self.name: self.load}


class TorchSave(Contender):
    """One file; loaded in both ways that torch.load has."""

    name = "torch.save"

    def save(self, state: State, path: Path) -> None:
        torch.save(state, path)

    def load(self, state: State, path: Path) -> None:
        _copied(torch.load(path), state)

    def load_mapped(self, state: State, path: Path) -> None:
        _copied(torch.load(path, mmap=True), state)

    def loads(self) -> Mapping[str, Load]:
        return {"torch.load": self.load, "torch.load, mmap": self.load_mapped}


def _copied(found: State, state: State) -> None:
    for name, tensor in found.items():
        state[name].copy_(tensor)

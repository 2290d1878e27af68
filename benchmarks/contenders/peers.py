"""How do the libraries of others save and load? Each as its documentation shows.

They live in an environment of their own; one that is not installed does not take part.
"""

# pyright: reportMissingImports=false, reportPrivateImportUsage=false

import asyncio
import errno
import logging
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.distributed.tensor import DTensor

from benchmarks.contenders.contender import Contender
from benchmarks.stored_states import State

_AT_ONCE = 4


def _arrays(state: State) -> dict[str, Any]:
    return {name: tensor.numpy() for name, tensor in state.items()}


class Orbax(Contender):
    """Orbax, of the JAX world; compressed by default."""

    def __init__(self, *, compressed: bool) -> None:
        self.name = "Orbax" if compressed else "Orbax, not compressed"
        self.compressed = compressed

    def prepare(self) -> None:
        import orbax.checkpoint as ocp

        handler = ocp.PyTreeCheckpointHandler(use_compression=self.compressed)
        self.saver = ocp.Checkpointer(handler)

    def save(self, state: State, path: Path) -> None:
        self.saver.save(path.absolute(), _arrays(state))

    def load(self, state: State, path: Path) -> None:
        for name, array in self.saver.restore(path.absolute()).items():
            state[name].copy_(torch.from_numpy(array))


class Tensorstore(Contender):
    """tensorstore's zarr driver, an array for each tensor, in chunks of its own choice."""

    name = "tensorstore zarr"

    def prepare(self) -> None:
        import tensorstore

        self.ts = tensorstore

    def save(self, state: State, path: Path) -> None:
        asyncio.run(self._each(_arrays(state), path, self._save_one))

    def load(self, state: State, path: Path) -> None:
        asyncio.run(self._each(_arrays(state), path, self._load_one))

    async def _each(self, arrays: dict[str, Any], path: Path, act: Any) -> None:
        """A few at a time: all at once need as much memory as the state."""
        room = asyncio.Semaphore(_AT_ONCE)

        async def bounded(name: str, array: Any) -> None:
            async with room:
                await act(path, name, array)

        await asyncio.gather(*(bounded(name, array) for name, array in arrays.items()))

    async def _save_one(self, path: Path, name: str, array: Any) -> None:
        store = await self.ts.open(_spec(path, name, array), create=True)
        # The array stays as it is until it is written.
        await store.write(array, can_reference_source_data_indefinitely=True)

    async def _load_one(self, path: Path, name: str, array: Any) -> None:
        store = await self.ts.open(_spec(path, name), open=True)
        await self.ts.array(array).write(store)


def _spec(path: Path, name: str, array: Any = None) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "driver": "zarr",
        "kvstore": {"driver": "file", "path": f"{path}/{name}/", "file_io_sync": False},
    }
    if array is not None:
        spec["metadata"] = {"shape": array.shape, "dtype": "<f4", "compressor": None}
    return spec


class Torchsnapshot(Contender):
    """torchsnapshot."""

    name = "torchsnapshot"

    def prepare(self) -> None:
        import torchsnapshot

        self.module = torchsnapshot

    def save(self, state: State, path: Path) -> None:
        self.module.Snapshot.take(str(path), {"state": self.module.StateDict(**state)})

    def load(self, state: State, path: Path) -> None:
        self.module.Snapshot(str(path)).restore({"state": self.module.StateDict(**state)})


class TorchCheckpointing(Contender):
    """Meta's torch_checkpointing, its synchronous saver."""

    name = "torch_checkpointing"

    def prepare(self) -> None:
        import torch_checkpointing as tc

        how = tc.CheckpointManager.Config(save=tc.SyncCheckpointSaverConfig())
        self.manager = tc.CheckpointManager(how)

    def save(self, state: State, path: Path) -> None:
        try:
            self.manager.save(str(path), {"state": state})
        except OSError as error:
            if error.errno == errno.EINVAL:
                raise OSError(
                    errno.EINVAL, "O_DIRECT: unaligned writes are refused here"
                ) from error
            raise

    def load(self, state: State, path: Path) -> None:
        found = self.manager.load(str(path), into={"state": state})
        for name, tensor in found["state"].items():
            if tensor is not state[name]:
                state[name].copy_(tensor)


class Megatron(Contender):
    """Megatron Core's dist_checkpointing, in its default format; it always syncs its files.

    Its calls that ask CUDA for a device, and wait for one, are answered for the CPU.
    """

    name = "Megatron"

    def __init__(self, *, durable: bool = False) -> None:
        self.save_act = "save, fsync" if durable else "save"

    def prepare(self) -> None:
        # It says at import which accelerators are not there, and at every load what torch renamed.
        logging.getLogger("megatron").setLevel(logging.ERROR)
        warnings.filterwarnings("ignore", module="megatron")
        from megatron.core import dist_checkpointing

        self.module = dist_checkpointing

    def save(self, state: State, path: Path) -> None:
        path.mkdir(exist_ok=True)
        with _no_cuda():
            self.module.save(self._described(state), str(path))

    def load(self, state: State, path: Path) -> None:
        # Into the tensors themselves.
        with _no_cuda():
            self.module.load(self._described(state), str(path))

    def _described(self, state: State) -> dict[str, Any]:
        return {name: self._sharded(name, tensor) for name, tensor in state.items()}

    def _sharded(self, name: str, tensor: torch.Tensor) -> Any:
        make = self.module.ShardedTensor.from_rank_offsets
        if not isinstance(tensor, DTensor):
            return make(name, tensor)
        mesh = tensor.device_mesh
        return make(name, tensor.to_local(), (0, mesh.get_local_rank(), mesh.size()))


@contextmanager
def _no_cuda() -> Generator[None]:
    waits = patch.object(torch.cuda, "synchronize", lambda: None)
    with waits, patch.object(torch.cuda, "current_device", lambda: "cpu"):
        yield


def peers() -> list[Contender]:
    return [
        Orbax(compressed=False),
        Orbax(compressed=True),
        Tensorstore(),
        Torchsnapshot(),
        TorchCheckpointing(),
    ]

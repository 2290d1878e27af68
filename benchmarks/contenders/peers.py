"""How do the libraries of others save and load? Each as its documentation shows.

They live in an environment of their own; one that is not installed does not take part.
"""

# pyright: reportMissingImports=false, reportPrivateImportUsage=false

import asyncio
import errno
from pathlib import Path
from typing import Any

import torch

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


def peers() -> list[Contender]:
    return [
        Orbax(compressed=False),
        Orbax(compressed=True),
        Tensorstore(),
        Torchsnapshot(),
        TorchCheckpointing(),
    ]

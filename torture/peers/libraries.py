"""How does each library save a state over the one before, and load it?

Each is used as its documentation shows, with its defaults. A library that refuses to replace a
checkpoint has the old one removed first, as its user has to.
"""

# Libraries that are not installed where this is checked.
# pyright: reportMissingImports=false, reportPrivateImportUsage=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from importlib.metadata import version
from pathlib import Path

import torch

State = dict[str, torch.Tensor]


class Library(ABC):
    """One contender. What it needs is imported by `prepare`, before any process is forked."""

    name: str
    package: str

    @property
    def version(self) -> str:
        return version(self.package)

    @abstractmethod
    def prepare(self) -> None:
        """Import the library."""

    @abstractmethod
    def save(self, state: State, path: Path) -> None:
        """Save, in the place of what is there; on return the user takes it for safe."""

    @abstractmethod
    def load(self, path: Path, like: State) -> State:
        """What is there; `like` has tensors of the same shapes."""


class Shardkeep(Library):
    """Ours."""

    name = "shardkeep"
    package = "torch"

    @property
    def version(self) -> str:
        import shardkeep

        return shardkeep.__version__

    def prepare(self) -> None:
        import shardkeep
        import shardkeep.checkpoint

        _ = shardkeep

    def save(self, state: State, path: Path) -> None:
        import shardkeep as sk

        sk.save(state, path, overwrite=True)

    def load(self, path: Path, like: State) -> State:
        import shardkeep as sk

        return sk.load(path)


class Dcp(Library):
    """torch.distributed.checkpoint."""

    name = "torch DCP"
    package = "torch"

    def prepare(self) -> None:
        import torch.distributed.checkpoint as dcp

        _ = dcp

    def save(self, state: State, path: Path) -> None:
        import torch.distributed.checkpoint as dcp

        dcp.save(state, checkpoint_id=path, no_dist=True)

    def load(self, path: Path, like: State) -> State:
        import torch.distributed.checkpoint as dcp

        dcp.load(like, checkpoint_id=path, no_dist=True)
        return like


class Safetensors(Library):
    """One file of safetensors."""

    name = "safetensors"
    package = "safetensors"

    def prepare(self) -> None:
        import safetensors.torch

        _ = safetensors.torch

    def save(self, state: State, path: Path) -> None:
        from safetensors.torch import save_file

        path.mkdir(parents=True, exist_ok=True)
        save_file(state, path / "model.safetensors")

    def load(self, path: Path, like: State) -> State:
        from safetensors.torch import load_file

        return load_file(path / "model.safetensors")


class TorchSave(Library):
    """One file of torch.save."""

    name = "torch.save"
    package = "torch"

    def prepare(self) -> None:
        """torch is here."""

    def save(self, state: State, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        torch.save(state, path / "state.pt")

    def load(self, path: Path, like: State) -> State:
        return torch.load(path / "state.pt", weights_only=True)


class Orbax(Library):
    """Orbax, of the JAX world."""

    name = "Orbax"
    package = "orbax-checkpoint"

    def prepare(self) -> None:
        import orbax.checkpoint

        _ = orbax.checkpoint

    def save(self, state: State, path: Path) -> None:
        import orbax.checkpoint as ocp

        with ocp.StandardCheckpointer() as saver:
            saver.save(path.absolute(), {k: v.numpy() for k, v in state.items()}, force=True)
            saver.wait_until_finished()

    def load(self, path: Path, like: State) -> State:
        import orbax.checkpoint as ocp

        with ocp.StandardCheckpointer() as loader:
            found = loader.restore(path.absolute(), {k: v.numpy() for k, v in like.items()})
        return {key: torch.from_numpy(value.copy()) for key, value in found.items()}


class TorchCheckpointing(Library):
    """Meta's torch_checkpointing, its synchronous saver."""

    name = "torch_checkpointing"
    package = "torch_checkpointing"

    def prepare(self) -> None:
        import torch_checkpointing

        _ = torch_checkpointing

    def save(self, state: State, path: Path) -> None:
        shutil.rmtree(path, ignore_errors=True)
        manager = self._manager()
        manager.save(str(path), state)
        manager.close()

    def load(self, path: Path, like: State) -> State:
        manager = self._manager()
        try:
            return dict(manager.load(str(path), into=like))
        finally:
            manager.close()

    def _manager(self):
        import torch_checkpointing as tc

        how = tc.CheckpointManager.Config(save=tc.SyncCheckpointSaverConfig())
        return tc.CheckpointManager(how)


class Torchsnapshot(Library):
    """torchsnapshot."""

    name = "torchsnapshot"
    package = "torchsnapshot"

    def prepare(self) -> None:
        import torchsnapshot

        _ = torchsnapshot

    def save(self, state: State, path: Path) -> None:
        from torchsnapshot import Snapshot, StateDict

        Snapshot.take(str(path), {"state": StateDict(**state)})

    def load(self, path: Path, like: State) -> State:
        from torchsnapshot import Snapshot, StateDict

        found = StateDict(**like)
        Snapshot(str(path)).restore({"state": found})
        return dict(found)


LIBRARIES: tuple[Library, ...] = (
    Shardkeep(),
    Dcp(),
    Orbax(),
    TorchCheckpointing(),
    Torchsnapshot(),
    Safetensors(),
    TorchSave(),
)

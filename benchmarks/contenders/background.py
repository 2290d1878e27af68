"""How does each library save in the background?"""

# torch lists its public names nowhere that a type checker looks.
# pyright: reportPrivateImportUsage=false, reportMissingImports=false

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

import shardkeep as sk
from benchmarks.contenders import own, peers, torch_ways
from benchmarks.contenders.contender import Contender
from benchmarks.figures import DCP, OURS
from benchmarks.stored_states import State

Wait = Callable[[], object]
CACHED = f"{DCP}, cached staging"
"""DCP's best: it blocks for the shortest time."""
COPY_ON_WRITE = f"{OURS}, copy-on-write"
PREPARED = f"{OURS}, prepared"


class BackgroundContender(ABC):
    """One library, used in one way. `foreground` loads what it saved."""

    name: str
    foreground: Contender
    is_peer = True

    def prepare(self) -> None:
        """Import what it needs; ModuleNotFoundError if it is not installed."""
        self.foreground.prepare()

    def make_ready(self, state: State) -> None:  # noqa: B027  most cannot
        """What may be done before a first save, while training goes on; not measured."""

    def settle(self) -> None:  # noqa: B027  most cannot
        """Return when what the last save left to be done for the next one is done."""

    @abstractmethod
    def begin(self, state: State, path: Path) -> Wait:
        """Returns when the state may be changed again; what it returns waits for the end."""


class Shardkeep(BackgroundContender):
    """`save_async`."""

    name = OURS
    is_peer = False

    def __init__(self) -> None:
        self.foreground = own.Shardkeep()

    def begin(self, state: State, path: Path) -> Wait:
        return sk.save_async(state, path, durable=False).result


class Prepared(Shardkeep):
    """The same after `prepare_async`, as a `Checkpointer` does it: it matters for first saves."""

    name = PREPARED

    def make_ready(self, state: State) -> None:
        sk.prepare_async(state)
        _wait_until_prepared()


def _wait_until_prepared() -> None:
    for thread in threading.enumerate():
        if thread.name == "shardkeep-prepare":
            thread.join()


class CopyOnWrite(BackgroundContender):
    """`save_async` of a forked child, which keeps the memory as it was."""

    name = COPY_ON_WRITE
    is_peer = False

    def __init__(self) -> None:
        self.foreground = own.Shardkeep()

    def begin(self, state: State, path: Path) -> Wait:
        return sk.save_async(state, path, durable=False, snapshot="fork").result

    def settle(self) -> None:
        _wait_until_prepared()


class Dcp(BackgroundContender):
    """`async_save`, which copies into fresh memory unless a stager keeps it."""

    is_peer = False

    def __init__(self, kind: AsyncCheckpointerType, *, cached: bool = False) -> None:
        self.name = CACHED if cached else f"{DCP}, {kind.value}"
        self.foreground = torch_ways.Dcp()
        self.kind = kind
        self.cached = cached
        self.stager: DefaultStager | None = None

    def prepare(self) -> None:
        if self.cached:
            # No pinned or shared memory, no thread, no stream: there is no accelerator here.
            self.stager = DefaultStager(StagingOptions(False, False, False, False))

    def begin(self, state: State, path: Path) -> Wait:
        writer = dcp.FileSystemWriter(path, sync_files=False, thread_count=2)
        future: Any = dcp.async_save(
            state,
            storage_writer=writer,
            async_checkpointer_type=self.kind,
            async_stager=self.stager,
        )
        return future.result


class Orbax(BackgroundContender):
    """AsyncCheckpointer, without compression."""

    name = "Orbax, not compressed"

    def __init__(self) -> None:
        self.foreground = peers.Orbax(compressed=False)

    def prepare(self) -> None:
        super().prepare()
        import orbax.checkpoint as ocp

        self.saver = ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler(use_compression=False))

    def begin(self, state: State, path: Path) -> Wait:
        self.saver.save(path.absolute(), {name: one.numpy() for name, one in state.items()})
        return self.saver.wait_until_finished


class Torchsnapshot(BackgroundContender):
    """`Snapshot.async_take`."""

    name = "torchsnapshot"

    def __init__(self) -> None:
        self.foreground = peers.Torchsnapshot()

    def begin(self, state: State, path: Path) -> Wait:
        from torchsnapshot import Snapshot, StateDict

        return Snapshot.async_take(str(path), {"state": StateDict(**state)}).wait


class TorchCheckpointing(BackgroundContender):
    """Its asynchronous saver, a process."""

    name = "torch_checkpointing"

    def __init__(self) -> None:
        self.foreground = peers.TorchCheckpointing()

    def prepare(self) -> None:
        super().prepare()
        import torch_checkpointing as tc

        how = tc.CheckpointManager.Config(save=tc.AsyncCheckpointSaverConfig())
        self.manager = tc.CheckpointManager(how)

    def begin(self, state: State, path: Path) -> Wait:
        saving: Any = self.manager.save(str(path), {"state": state})
        # Held while it copies: then the state may be changed.
        with self.manager.lock():
            return saving.result


def background_contenders(quick: bool) -> list[BackgroundContender]:
    """Without those who take long to start, if quick."""
    soon = [
        Shardkeep(),
        CopyOnWrite(),
        Dcp(AsyncCheckpointerType.THREAD),
        Dcp(AsyncCheckpointerType.THREAD, cached=True),
    ]
    late = [Dcp(AsyncCheckpointerType.PROCESS), Orbax(), Torchsnapshot(), TorchCheckpointing()]
    return [*soon] if quick else [*soon, *late]

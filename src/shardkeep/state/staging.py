"""How is a snapshot of a state dict taken that never changes, in memory that is used again?"""

import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import torch

from shardkeep.errors import InvalidError
from shardkeep.state.buffers import BufferPool, HostMemory
from shardkeep.state.frozen import (
    Frozen,
    FrozenTensor,
    Memory,
    freezable_at,
    is_freezable,
    thawed,
)
from shardkeep.state.mirror import allocate_parts, copy_parts, mirror_tree
from shardkeep.state.paths import Path
from shardkeep.state.tree import nodes
from shardkeep.state.values import copied_value


class Snapshot:
    """A copy of a state dict in host memory that its holder alone decides about.

    After `release`, or at the end of a `with` block, the next snapshot may overwrite its
    memory: keep no tensor of it. A snapshot that is dropped without release frees its memory.
    """

    def __init__(
        self,
        tree: Any,
        buffers: list[torch.Tensor],
        pool: BufferPool,
        *,
        frozen: Frozen | None = None,
    ) -> None:
        self._tree = tree
        self._frozen = frozen
        self._buffers: list[torch.Tensor] | None = buffers
        self._pool = pool
        self._lock = threading.Lock()

    @property
    def tree(self) -> Any:
        """The state dict as it was: the same containers, every tensor on the CPU."""
        if self._buffers is None:
            raise InvalidError("the snapshot was released: its memory may belong to a later one")
        return self._tree

    @property
    def nbytes(self) -> int:
        """How much buffer memory the snapshot holds."""
        return sum(buffer.nbytes for buffer in self._buffers or ())

    def release(self) -> None:
        """Give the memory back to the stager. From any thread; a second call does nothing."""
        # Two threads that release at once must not hand the same memory to two snapshots.
        with self._lock:
            buffers, self._buffers, self._tree = self._buffers, None, None
        if buffers is not None:
            self._pool.give_back(buffers)
            if self._frozen is not None:
                self._frozen.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


class Stager:
    """Takes snapshots of state dicts, in buffers that are used again once they are released.

    >>> stager, weight = Stager(), torch.ones(2)
    >>> with stager.stage({"weight": weight}) as snapshot:
    ...     weight.zero_()
    ...     snapshot.tree["weight"]
    tensor([0., 0.])
    tensor([1., 1.])
    """

    def __init__(self, *, pin_memory: bool = False, share_memory: bool = False) -> None:
        memory = HostMemory(pin_memory, share_memory)
        memory.check()
        self._pool = BufferPool(memory)

    @torch.no_grad()
    def stage(self, state_dict: Any) -> Snapshot:
        """A snapshot of the whole tree, complete when this returns.

        Of each storage, the bytes that leaves use are copied once: views, strides and ties are
        rebuilt on the copy. DTensors and ShardedTensors keep their layout; other leaves are
        deep-copied. While an earlier snapshot is held, this one gets fresh memory.
        """
        tree, buffers = self._copied(state_dict)
        return Snapshot(tree, buffers, self._pool)

    @torch.no_grad()
    def copy(self, memory: Mapping[str, Sequence[Memory]]) -> Snapshot:
        """A snapshot of plain tensors by key; `tree` has as many lists. Sooner than `stage`."""
        copies, buffers = self._copies(memory)
        return Snapshot(copies, buffers, self._pool)

    @torch.no_grad()
    def reserve(self, memory: Mapping[str, Sequence[Memory]]) -> list[torch.Tensor]:
        """Have buffers for a `copy` of these; those that are fresh, to be populated by any thread.

        What a released snapshot has left is used again.
        """
        buffers = self._pool.open()
        allocate_parts(_thawed(memory), buffers.take)
        self._pool.give_back(buffers.taken)
        return buffers.fresh

    @torch.no_grad()
    def freeze(self, memory: Mapping[str, Sequence[Memory]]) -> Snapshot:
        """A snapshot of tensors by key, large ones not copied but frozen where that is safe.

        `tree` then holds a FrozenTensor for each of these.
        """
        live = {key: [p for p in parts if is_freezable(p)] for key, parts in memory.items()}
        addresses = freezable_at([part for parts in live.values() for part in parts])
        if not addresses:
            return self.copy(memory)
        kept = {id(part) for parts in live.values() for part in parts}
        small = {key: [p for p in parts if id(p) not in kept] for key, parts in memory.items()}
        copies, buffers = self._copies(small)
        frozen, tree = Frozen(), dict[str, list[Memory]]()
        for key, parts in memory.items():
            of_frozen = iter([FrozenTensor.of(part, frozen) for part in live[key]])
            copied = iter(copies[key])
            tree[key] = [next(of_frozen if id(part) in kept else copied) for part in parts]
        # Last: all that this process writes to from here on, be it a count of references, the
        # kernel has to copy first.
        if frozen.begin(addresses):
            return Snapshot(tree, buffers, self._pool, frozen=frozen)
        self._pool.give_back(buffers)
        return self.copy(memory)

    def _copies(
        self, memory: Mapping[str, Sequence[Memory]]
    ) -> tuple[dict[str, list[torch.Tensor]], list[torch.Tensor]]:
        buffers = self._pool.open()
        return copy_parts(_thawed(memory), buffers.take), buffers.taken

    def _copied(self, state_dict: Any) -> tuple[Any, list[torch.Tensor]]:
        buffers = self._pool.open()
        memo: dict[int, Any] = {}

        def value(path: Path, leaf: Any) -> Any:
            return copied_value(path, leaf, memo)

        tree = mirror_tree(state_dict, buffers.take, value, fill=True)
        _own_attributes(tree, memo)
        return tree, buffers.taken

    def clear(self) -> None:
        """Free the memory of released snapshots."""
        self._pool.clear()


def _thawed(memory: Mapping[str, Sequence[Memory]]) -> dict[str, list[torch.Tensor]]:
    return {key: [thawed(one) for one in several] for key, several in memory.items()}


def _own_attributes(tree: Any, memo: dict[int, Any]) -> None:
    """Replace what the containers of a fresh tree still share with the source by copies."""
    for node in nodes(tree):
        if node.opened and node.opened.container.attributes:
            attributes = node.opened.container.attributes
            node.value.__dict__.update(copied_value(node.path, attributes, memo))

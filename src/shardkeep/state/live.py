"""Which objects in a tree have a state of their own, and how is it kept and given back?

Each kind has an adapter. A save asks it what to keep. A load asks it what to fill, once the
checkpoint's structure is known, and hands it the outcome when everything was read: until then no
live object changes its structure, only the memory of tensors that it already has.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard, runtime_checkable

import torch

from shardkeep.manifest import DictNode, ListNode, Node, TensorRecord, TupleNode
from shardkeep.state.paths import Path


@runtime_checkable
class Stateful(Protocol):
    """Anything that gives its state and takes it back: modules, optimizers, schedulers, ..."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state_dict: Any, /) -> Any: ...


@dataclass(frozen=True, slots=True)
class Stored:
    """What a checkpoint has at the place of a live object, before any tensor is read."""

    node: Node | None
    """None: nothing was saved there."""
    records: Sequence[TensorRecord]
    """The checkpoint's tensors, by number."""
    world: int
    """How many ranks saved it."""
    me: int

    def at(self, *keys: Hashable) -> Stored:
        """What is stored further down."""
        node = self.node
        for key in keys:
            node = _child(node, key)
        return Stored(node, self.records, self.world, self.me)

    @property
    def items(self) -> Mapping[str | int, Node]:
        """The children of a dict; empty for anything else."""
        return dict(self.node.items) if isinstance(self.node, DictNode) else {}


def _child(node: Node | None, key: Hashable) -> Node | None:
    if isinstance(node, DictNode):
        return next((child for name, child in node.items if name == key), None)
    if isinstance(node, ListNode | TupleNode) and isinstance(key, int):
        return node.items[key] if key < len(node.items) else None
    return None


@dataclass(frozen=True, slots=True)
class OfRank:
    """Wanted in the place of a value of each rank's own: that of this rank."""

    rank: int


@dataclass(frozen=True, slots=True)
class Merged:
    """Wanted in the place of a value of each rank's own: what `merge` makes of all ranks' values.

    One rank reads them and tells the others, so `merge` must return what a checkpoint can keep.
    """

    merge: Callable[[Sequence[Any]], Any]


class Live(Protocol):
    """A live object, as a save and a load see it."""

    @property
    def is_divisible(self) -> bool:
        """Whether a load may fill a part of it and leave the rest as it is."""
        ...

    def kept(self) -> Any:
        """What is saved of it: a tree of tensors and values."""
        ...

    def wanted(self, stored: Stored) -> Any:
        """What a load fills: tensors with memory (or on meta), any value where a value goes.

        The object itself must not change yet.
        """
        ...

    def give(self, state: Any, loaded: Set[Path]) -> None:
        """Take what was `wanted`, now filled at the places that are `loaded`."""
        ...


def is_live(leaf: object) -> TypeGuard[Stateful | Live]:
    """Whether this is an object with a state of its own; a class has the methods, but no state."""
    # Tensors first: asking for the methods of a protocol is slow.
    if isinstance(leaf, torch.Tensor | type):
        return False
    return isinstance(leaf, Stateful) or is_adapter(leaf)


def is_adapter(leaf: object) -> TypeGuard[Live]:
    """Whether the object is its own adapter."""
    return all(callable(getattr(leaf, name, None)) for name in ("kept", "wanted", "give"))

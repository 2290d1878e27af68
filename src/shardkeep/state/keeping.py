"""What of a state is kept: which tensors, which values, in which structure?

The tree is walked once. Tensors of every kind become entries with the memory that this rank
holds, everything else becomes nodes of the manifest's tree. What cannot be kept is refused here,
by its path, before anything is written.
"""

# torch and NumPy leave from_numpy(), tolist() and the like untyped.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch

from shardkeep.errors import InvalidError, LayoutError
from shardkeep.layouts import Layout
from shardkeep.manifest import (
    ArrayNode,
    DictNode,
    ListNode,
    Node,
    PerRankNode,
    SparseNode,
    TensorNode,
    TupleNode,
    ValueNode,
    encode_value,
)
from shardkeep.plan import Entry
from shardkeep.sharded.leaves import PLAIN, LaidOutAlike, LeafKind, leaf_kind, local_tensors
from shardkeep.state.adapting import adapters_of, expanded
from shardkeep.state.dtypes import DTYPE_NAMES
from shardkeep.state.frozen import Memory
from shardkeep.state.paths import Path, flat_keys, path_text
from shardkeep.state.tree import Opened, leaves, open_container


@dataclass(frozen=True, slots=True)
class PerRank:
    """A value of which every rank has its own."""

    value: Any


def per_rank(value: Any) -> PerRank:
    """Mark a value that differs from rank to rank on purpose, such as a random state.

    Each rank's value is kept, and rank n gets back what rank n saved.
    """
    return PerRank(value)


@dataclass
class KeptState:
    """All that a checkpoint keeps of one rank's state."""

    tree: Node = field(default_factory=lambda: DictNode((), ordered=False))
    entries: dict[str, Entry] = field(default_factory=dict[str, Entry])
    """Dtype, shape and layout by key; no layout: whole on every rank that has it."""
    memory: dict[str, Sequence[Memory]] = field(default_factory=dict[str, Sequence[Memory]])
    """This rank's memory by key."""
    per_rank: dict[str, Node] = field(default_factory=dict[str, Node])

    @property
    def nbytes(self) -> int:
        """Of the memory that this rank holds."""
        return sum([part.nbytes for parts in self.memory.values() for part in parts])


def keep_state(state: Any) -> KeptState:
    """Everything that is to be saved of `state` by this rank."""
    found = leaves(state)
    live = adapters_of(found)
    if live:
        state = expanded(state, live)
        found = leaves(state)
    return _Keeper(state, found).run()


class _Keeper:
    def __init__(self, tree: Any, found: Sequence[tuple[Path, Any]]) -> None:
        """`found` are the leaves of the tree."""
        self._root = tree
        self._kept = KeptState()
        self._keys = flat_keys(_kept_paths(found))
        self._plain: dict[object, Entry] = {}
        """By dtype and shape. Of many thousand tensors, most are like one before them."""
        self._on_mesh = LaidOutAlike(_entry_on_mesh)
        self._numbers: dict[str, int] = {}
        self._seen: dict[int, list[str]] = {}
        """The keys of what is kept, by the address at which its cells start."""

    def run(self) -> KeptState:
        self._kept.tree = self._node(self._root, ())
        return self._kept

    def _node(self, value: Any, path: Path) -> Node:
        kind = leaf_kind(value)
        if kind is not None:
            return self._usual(value, kind, path) or self._tensor_leaf(value, path)
        opened = open_container(value)
        if opened is not None:
            return self._container(opened, path)
        if isinstance(value, np.ndarray):
            return ArrayNode(self._number(path, self._from_numpy(value, path)))
        if isinstance(value, PerRank):
            return self._own(value, path)
        return ValueNode(_value(value, path))

    def _container(self, opened: Opened, path: Path) -> Node:
        container = opened.container
        items = [
            (key, self._node(value, (*path, key)))
            for key, value in zip(container.keys, opened.values, strict=True)
        ]
        if container.is_mapping:
            for key in container.keys:
                if type(key) is not str:
                    _require_key(key, path)
            pairs = cast("tuple[tuple[str | int, Node], ...]", tuple(items))
            return DictNode(pairs, ordered=container.kind is OrderedDict)
        made = tuple(node for _, node in items)
        return ListNode(made) if container.kind is list else TupleNode(made)

    def _usual(self, leaf: Any, kind: LeafKind, path: Path) -> TensorNode | None:
        """The usual leaf, like one before it, without a call for each question; else None."""
        part: torch.Tensor = leaf if kind != "dtensor" else leaf._local_tensor
        if (
            type(part) is not torch.Tensor
            or part.layout is not torch.strided
            or part.is_nested
            or part.requires_grad
        ):
            return None
        entry = (
            self._plain.get((part.dtype, part.shape)) if part is leaf else self._on_mesh.of(leaf)
        )
        address = part.data_ptr()
        # Without an address it is empty, or has no memory.
        if entry is None or not address or address in self._seen:
            return None
        key, memory = self._keys[path], (part,)
        self._seen[address] = [key]
        self._kept.entries[key] = entry
        self._kept.memory[key] = memory
        number = self._numbers[key] = len(self._numbers)
        return TensorNode(number)

    def _tensor_leaf(self, leaf: torch.Tensor, path: Path) -> Node:
        if leaf_kind(leaf) == "tensor" and leaf.is_nested:
            raise InvalidError(f"{path_text(path)} is a nested tensor; keep its parts as a list")
        if leaf.layout is not torch.strided:
            return self._sparse(leaf, path)
        return TensorNode(self._number(path, leaf))

    def _sparse(self, leaf: torch.Tensor, path: Path) -> Node:
        parts = _SPARSE_PARTS.get(leaf.layout)
        if parts is None:
            raise InvalidError(f"{path_text(path)}: tensors of {leaf.layout} cannot be kept")
        made = tuple(
            (name, TensorNode(self._number((*path, name), part(leaf))))
            for name, part in parts.items()
        )
        coalesced = leaf.layout is torch.sparse_coo and leaf.is_coalesced()
        layout = str(leaf.layout).removeprefix("torch.")
        return SparseNode(layout, tuple(leaf.shape), coalesced, made)

    def _from_numpy(self, array: Any, path: Path) -> torch.Tensor:
        if type(array) not in (np.ndarray, np.memmap):
            # A masked array would lose its mask, others their meaning.
            raise InvalidError(
                f"{path_text(path)} is a {type(array).__name__}; plain NumPy arrays are kept"
            )
        try:
            return torch.from_numpy(np.require(array, requirements=["C", "W", "A"]))
        except (TypeError, ValueError) as error:
            raise InvalidError(f"{path_text(path)}: {error}") from error

    def _number(self, path: Path, leaf: torch.Tensor) -> int:
        """The number of the tensor among all that are kept; a tied one has its twin's."""
        key = self._keys[path]
        memory = local_tensors(leaf)
        if any(part.is_meta for part in memory):
            raise InvalidError(f"{path_text(path)} is on the meta device: it has no values to keep")
        layout = _layout(leaf, path)
        if leaf.dtype not in DTYPE_NAMES:
            raise InvalidError(f"{path_text(path)}: dtype {leaf.dtype} cannot be kept")
        entry = Entry(DTYPE_NAMES[leaf.dtype], tuple(leaf.shape), layout)
        twin = self._twin(key, entry, memory)
        if twin is not None:
            return self._numbers[twin]
        if layout is None:
            entry = self._plain.setdefault((leaf.dtype, leaf.shape), entry)
        self._kept.entries[key] = entry
        self._kept.memory[key] = memory
        number = self._numbers[key] = len(self._numbers)
        return number

    def _twin(self, key: str, entry: Entry, memory: Sequence[torch.Tensor]) -> str | None:
        """The key under which the same cells of the same memory are kept already."""
        if not memory or 0 in entry.shape:
            return None
        # Empty memory has no address: of many such shards, each is told by its storage.
        address = memory[0].data_ptr() or -_storage_id(memory[0])
        known = self._seen.setdefault(address, [])
        if known:
            # Seldom: what starts at the same address may still be of another shape.
            mine = _identity(entry, memory)
            for other in known:
                if _identity(self._kept.entries[other], self._kept.memory[other]) == mine:
                    return other
        known.append(key)
        return None

    def _own(self, own: PerRank, path: Path) -> Node:
        try:
            kept = _Keeper(own.value, leaves(own.value)).run()
        except InvalidError as error:
            raise type(error)(f"per_rank at {path_text(path)}: {error}") from error
        if kept.entries or kept.per_rank:
            raise InvalidError(
                f"{path_text(path)}: per_rank keeps values, no tensors; turn a small tensor into "
                "bytes or a list, or save each under a key with its rank"
            )
        key = self._keys[path]
        self._kept.per_rank[key] = kept.tree
        return PerRankNode(key)


def _kept_paths(found: Sequence[tuple[Path, Any]]) -> list[Path]:
    """The places of all leaves; of a sparse one, the places of its parts."""
    made: list[Path] = []
    for path, leaf in found:
        is_plain = type(leaf) in PLAIN or leaf_kind(leaf) == "tensor"
        if is_plain and leaf.layout in _SPARSE_PARTS:
            made += [(*path, name) for name in _SPARSE_PARTS[leaf.layout]]
        else:
            made.append(path)
    return made


def _value(value: Any, path: Path) -> Any:
    try:
        return encode_value(value)
    except InvalidError as error:
        raise InvalidError(f"{path_text(path)}: {error}") from error


def _require_key(key: object, path: Path) -> None:
    if isinstance(key, bool) or not isinstance(key, str | int):
        raise InvalidError(
            f"{path_text((*path, cast('Any', key)))}: key {key!r} is a {type(key).__name__}; "
            "keys of dicts are str or int"
        )


def _layout(leaf: torch.Tensor, path: Path) -> Layout | None:
    if leaf_kind(leaf) == "tensor":
        return None
    try:
        return Layout.of(leaf)
    except LayoutError as error:
        raise LayoutError(f"{path_text(path)}: {error}") from error


def _entry_on_mesh(leaf: torch.Tensor) -> Entry | None:
    """The entry of a DTensor; None if it has none, which is told elsewhere, by its path."""
    if leaf.dtype not in DTYPE_NAMES:
        return None
    with suppress(LayoutError):
        return Entry(DTYPE_NAMES[leaf.dtype], tuple(leaf.shape), Layout.of(leaf))
    return None


def _identity(entry: Entry, memory: Sequence[Any]) -> object:
    return cells_identity(entry.dtype, entry.shape, entry.layout, memory)


def cells_identity(
    dtype: object, shape: Sequence[int], layout: Layout | None, memory: Sequence[torch.Tensor]
) -> object:
    """Equal for two leaves that are the same cells of the same memory; on the meta device, too."""
    places = tuple(
        (
            _storage_id(part),
            part.storage_offset(),
            part.shape,
            part.stride(),
            # A conjugate shares its twin's memory, but not its values.
            part.is_conj(),
            part.is_neg(),
        )
        for part in memory
    )
    return dtype, tuple(shape), layout, places


def _storage_id(part: torch.Tensor) -> int:
    # Not the address: all empty shards have address 0, and would look tied on some ranks only.
    return cast("Any", part.untyped_storage())._cdata


Part = Callable[[Any], torch.Tensor]
_ROWS: dict[str, Part] = {
    "crow_indices": lambda t: t.crow_indices(),
    "col_indices": lambda t: t.col_indices(),
    "values": lambda t: t.values(),
}
_COLUMNS: dict[str, Part] = {
    "ccol_indices": lambda t: t.ccol_indices(),
    "row_indices": lambda t: t.row_indices(),
    "values": lambda t: t.values(),
}
_SPARSE_PARTS: dict[torch.layout, dict[str, Part]] = {
    torch.sparse_coo: {"indices": lambda t: t._indices(), "values": lambda t: t._values()},
    torch.sparse_csr: _ROWS,
    torch.sparse_csc: _COLUMNS,
    torch.sparse_bsr: _ROWS,
    torch.sparse_bsc: _COLUMNS,
}

"""Where does what a checkpoint holds go in a state that is already there?

The state's own layout decides: each rank wants the boxes that it holds, whatever layout they were
saved from. Everything that does not fit is found before a byte is read.
"""

# torch and NumPy leave from_numpy(), tolist() and the like untyped.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeVar, cast

import msgspec
import numpy as np
import torch

from shardkeep.boxes import Box
from shardkeep.errors import ConflictError, LayoutError, NotFoundError
from shardkeep.layouts import Layout
from shardkeep.manifest import (
    ArrayNode,
    DictNode,
    ListNode,
    Manifest,
    Node,
    PerRankNode,
    SparseNode,
    TensorNode,
    TensorRecord,
    TupleNode,
    ValueNode,
)
from shardkeep.sharded.leaves import (
    PLAIN,
    LaidOutAlike,
    leaf_kind,
    local_tensors,
    with_local_tensors,
)
from shardkeep.state.dtypes import DTYPE_NAMES, TORCH_DTYPES
from shardkeep.state.keeping import cells_identity
from shardkeep.state.paths import Path, dotted, path_text

_SHOWN = 5
_COMPLEX = frozenset(name for name, dtype in TORCH_DTYPES.items() if dtype.is_complex)
_T = TypeVar("_T")


# Made by the 10,000s: a Struct is many times as fast as a dataclass.
class Slot(msgspec.Struct, frozen=True, gc=False):
    """A box of a stored tensor, and this rank's memory for it."""

    record: TensorRecord
    box: Box
    memory: torch.Tensor
    address: int | None
    """Where the memory starts if what is stored can go there as it is, in one piece."""

    @classmethod
    def of(cls, record: TensorRecord, box: Box, memory: torch.Tensor) -> Slot:
        """For any memory of the box's shape."""
        return cls(record, box, memory, _address_of(memory, record.dtype, box.shape))


def _address_of(memory: torch.Tensor, dtype: str, shape: tuple[int, ...]) -> int | None:
    """Where memory starts that is a plain CPU tensor of this dtype and shape, in one piece."""
    is_plain = (
        memory.dtype is TORCH_DTYPES[dtype]
        and memory.is_cpu
        and memory.shape == shape
        and memory.layout is torch.strided
        and memory.is_contiguous()
        and not memory.is_neg()
        and not (dtype in _COMPLEX and memory.is_conj())
    )
    return memory.data_ptr() if is_plain else None


@dataclass
class Fit:
    """How a checkpoint and a state fit together."""

    slots: list[Slot] = field(default_factory=list[Slot])
    """Memory to fill."""
    replaced: dict[Path, Any] = field(default_factory=dict[Path, Any])
    """Leaves that give way to new ones: values, and tensors that had no memory."""
    sparse: dict[Path, SparseNode] = field(default_factory=dict[Path, SparseNode])
    per_rank: dict[Path, tuple[str, Any]] = field(default_factory=dict[Path, tuple[str, Any]])
    """Places of values of a rank's own: their key, and what stands there now."""
    paths: list[Path] = field(default_factory=list[Path])
    """What of the state is filled or replaced."""
    missing: list[str] = field(default_factory=list[str])
    """In the state, not in the checkpoint."""
    unexpected: list[str] = field(default_factory=list[str])
    """In the checkpoint, not in the state."""
    cast: list[str] = field(default_factory=list[str])
    mismatched: list[str] = field(default_factory=list[str])
    """Shapes and dtypes that do not fit, in words."""


def stored_leaves(node: Node) -> list[tuple[Path, Node]]:
    """Every leaf of a manifest's tree with its path."""
    found: list[tuple[Path, Node]] = []
    _gather(node, (), found)
    return found


def _gather(node: Node, path: Path, found: list[tuple[Path, Node]]) -> None:
    if isinstance(node, DictNode):
        for key, child in node.items:
            # There may be many thousands: no call is made for a tensor.
            if type(child) is TensorNode:
                found.append(((*path, key), child))
            else:
                _gather(child, (*path, key), found)
    elif isinstance(node, ListNode | TupleNode):
        for index, child in enumerate(node.items):
            _gather(child, (*path, index), found)
    else:
        found.append((path, node))


def fit_state(
    manifest: Manifest,
    leaves: Sequence[tuple[Path, Any]],
    *,
    me: int,
    keys: Sequence[str] | None,
    cast: bool,
    device: torch.device | None = None,
) -> Fit:
    """What goes where. `leaves` are those of a state, live objects as their state dicts."""
    fitter = _Fitter(manifest, me, cast, device)
    stored = _asked(stored_leaves(manifest.tree), keys)
    if keys is not None and not stored:
        raise NotFoundError(
            f"nothing in the checkpoint matches keys={list(keys)}; patterns are of dotted paths, "
            "such as 'model.*'"
        )
    asked = _asked(leaves, keys)
    if [path for path, _ in asked] == [path for path, _ in stored]:
        # As saved, the usual case: nothing has to be looked for.
        fitter.add_all(asked, [node for _, node in stored])
    else:
        fitter.add_found(dict(asked), dict(stored))
    return fitter.fit


def _asked(
    found: Sequence[tuple[Path, _T]], keys: Sequence[str] | None
) -> Sequence[tuple[Path, _T]]:
    return found if keys is None else [one for one in found if is_asked(one[0], keys)]


def is_asked(path: Path, keys: Sequence[str] | None) -> bool:
    """Whether one of the patterns is of this path; without any, all are asked for."""
    if keys is None:
        return True
    text = ".".join(map(str, path))
    return any(fnmatch.fnmatchcase(text, pattern) for pattern in keys)


class _Fitter:
    def __init__(
        self, manifest: Manifest, me: int, cast: bool, device: torch.device | None
    ) -> None:
        self._manifest = manifest
        self._me = me
        self._cast = cast
        self._device = device
        # No method of mine: all that is loaded would stay in memory until the collector comes.
        self._held_alike = LaidOutAlike(partial(_held_of, me))
        self.fit = Fit()

    def add_all(self, leaves: Sequence[tuple[Path, Any]], nodes: Sequence[Node]) -> None:
        """Fit leaves of the state to as many of the checkpoint."""
        tensors, slots, whole = self._manifest.tensors, self.fit.slots, _whole
        for (path, leaf), node in zip(leaves, nodes, strict=True):
            if type(node) is not TensorNode:
                self._add(path, leaf, node)
                continue
            # There may be many thousands of these: few calls are made for one.
            record = tensors[node.index]
            if type(leaf) in PLAIN:
                shape = record.shape
                address = _address_of(leaf, record.dtype, shape)
                if address is not None:
                    slots.append(Slot(record, whole(shape), leaf, address))
                    continue
            elif leaf_kind(leaf) == "dtensor" and self._fill_dtensor(leaf, record):
                continue
            self._tensor(path, leaf, record)
        self.fit.paths.extend([path for path, _ in leaves])

    def _add(self, path: Path, leaf: Any, node: Node) -> None:
        if isinstance(node, ValueNode | PerRankNode):
            self._value(path, leaf, node)
        elif isinstance(node, SparseNode):
            self._sparse(path, leaf, node)
        elif isinstance(node, ArrayNode):
            self._tensor(path, leaf, self._manifest.tensors[node.index])

    def add_found(self, asked: Mapping[Path, Any], stored: dict[Path, Node]) -> None:
        """Fit those of the leaves that are stored, and tell what only one side has."""
        found = {path: leaf for path, leaf in asked.items() if path in stored}
        self.add_all(list(found.items()), [stored.pop(path) for path in found])
        absent = {path: leaf for path, leaf in asked.items() if path not in found}
        self._add_tied(absent, asked)
        self.fit.unexpected.extend(dotted(path) for path in stored)

    def _add_tied(self, absent: Mapping[Path, Any], leaves: Mapping[Path, Any]) -> None:
        """Leaves that are not stored: one that is the memory of another, filled one is not missing.

        Some formats keep tied tensors under one of their names only.
        """
        filled = {
            identity: path
            for path in (self.fit.paths if absent else ())
            if (identity := self._identity(path, leaves[path])) is not None
        }
        for path, leaf in absent.items():
            twin = filled.get(self._identity(path, leaf))
            if twin is None:
                self.fit.missing.append(dotted(path))
                continue
            self.fit.paths.append(path)
            if twin in self.fit.replaced:
                self.fit.replaced[path] = self.fit.replaced[twin]

    def _identity(self, path: Path, leaf: Any) -> object:
        """Equal for leaves that are the same memory; None for what is no memory to fill."""
        kind = leaf_kind(leaf)
        if kind is None or leaf.layout is not torch.strided or 0 in leaf.shape:
            return None
        memory = local_tensors(leaf)
        if not memory:
            return id(leaf)
        layout = None if kind == "tensor" else self._layout(path, leaf)
        return cells_identity(leaf.dtype, leaf.shape, layout, memory)

    def _value(self, path: Path, leaf: Any, node: ValueNode | PerRankNode) -> None:
        if leaf_kind(leaf) is not None or isinstance(leaf, np.ndarray):
            self._mismatch(path, "is a tensor here, a value in the checkpoint")
        elif isinstance(node, PerRankNode):
            self.fit.per_rank[path] = node.key, leaf
        else:
            self.fit.replaced[path] = node.value

    def _sparse(self, path: Path, leaf: Any, node: SparseNode) -> None:
        """A sparse tensor is made anew: how many cells it stores is the checkpoint's matter."""
        values = dict(node.parts)["values"]
        if leaf_kind(leaf) is None or f"torch.{node.layout}" != str(leaf.layout):
            here = leaf.layout if leaf_kind(leaf) else f"a {type(leaf).__name__}"
            self._mismatch(path, f"is {here} here, torch.{node.layout} in the checkpoint")
        elif tuple(leaf.shape) != node.shape:
            self._mismatch(
                path, f"has shape {tuple(leaf.shape)} here, {node.shape} in the checkpoint"
            )
        elif isinstance(values, TensorNode):
            there = TORCH_DTYPES[self._manifest.tensors[values.index].dtype]
            if leaf.dtype != there:
                self._mismatch(path, f"is {leaf.dtype} here, {there} in the checkpoint")
            self.fit.sparse[path] = node

    def _tensor(self, path: Path, leaf: Any, record: TensorRecord) -> None:
        if isinstance(leaf, np.ndarray):
            array = cast("Any", leaf)
            if not array.flags.writeable or min(array.strides, default=0) < 0:
                self._mismatch(path, "is an array that cannot be filled (read-only or reversed)")
                return
            leaf = torch.from_numpy(array)
        if leaf_kind(leaf) is None:
            self._mismatch(path, f"is a {type(leaf).__name__} here, a tensor in the checkpoint")
        elif leaf.layout is not torch.strided:
            self._mismatch(path, f"is {leaf.layout} here, torch.strided in the checkpoint")
        elif tuple(leaf.shape) != record.shape:
            self._mismatch(
                path, f"has shape {tuple(leaf.shape)} here, {record.shape} in the checkpoint"
            )
        elif TORCH_DTYPES[record.dtype].is_complex and not leaf.dtype.is_complex:
            self._mismatch(path, f"is {leaf.dtype} here, complex in the checkpoint")
        elif DTYPE_NAMES.get(leaf.dtype) != record.dtype and not self._cast:
            here, there = leaf.dtype, TORCH_DTYPES[record.dtype]
            self._mismatch(
                path, f"is {here} here, {there} in the checkpoint (cast=True converts it)"
            )
        else:
            self._fill(path, leaf, record)

    def _fill(self, path: Path, leaf: torch.Tensor, record: TensorRecord) -> None:
        if DTYPE_NAMES.get(leaf.dtype) != record.dtype:
            self.fit.cast.append(dotted(path))
        memory = local_tensors(leaf)
        if any(part.is_meta for part in memory):
            device = self._device or torch.device("cpu")
            memory = [torch.empty_like(part, device=device) for part in memory]
            self.fit.replaced[path] = with_local_tensors(leaf, memory, device=device)
        if leaf_kind(leaf) == "tensor":
            self.fit.slots.append(Slot.of(record, _whole(record.shape), memory[0]))
            return
        for part in self._layout(path, leaf).parts_of(self._me):
            view = memory[part.buffer]
            if part.place.shape != view.shape:
                view = view[part.place.slices()]
            self.fit.slots.append(Slot.of(record, part.box, view))

    def _layout(self, path: Path, leaf: torch.Tensor) -> Layout:
        try:
            return Layout.of(leaf, ranks=[self._me])
        except LayoutError as error:
            raise LayoutError(f"{path_text(path)}: {error}") from error

    def _fill_dtensor(self, leaf: Any, record: TensorRecord) -> bool:
        """Have a DTensor filled of which this rank holds one box; False if it raises questions."""
        held, local = self._held_alike.of(leaf), leaf._local_tensor
        if (
            held is None
            or type(local) is not torch.Tensor
            or held.global_shape != record.shape
            or (address := _address_of(local, record.dtype, held.box_shape)) is None
        ):
            return False
        self.fit.slots.append(Slot(record, held.box, local, address))
        return True

    def _mismatch(self, path: Path, text: str) -> None:
        self.fit.mismatched.append(f"{path_text(path)} {text}")


# Many thousand tensors have few shapes.
@lru_cache(maxsize=1024)
def _whole(shape: tuple[int, ...]) -> Box:
    return Box.whole(shape)


class _Held(NamedTuple):
    """The one box of a tensor that this rank holds."""

    global_shape: tuple[int, ...]
    box: Box
    box_shape: tuple[int, ...]


def _held_of(me: int, leaf: torch.Tensor) -> _Held | None:
    """What this rank holds of DTensors like this one, if that is all of their memory."""
    try:
        parts = Layout.of(leaf, ranks=[me]).parts_of(me)
    except LayoutError:
        return None
    if len(parts) != 1:
        return None
    return _Held(tuple(leaf.shape), parts[0].box, parts[0].box.shape)


def require_fit(fit: Fit, *, strict: bool) -> None:
    """Raise, naming what does not fit, unless everything that must fit does."""
    if fit.mismatched:
        raise ConflictError("the state does not fit the checkpoint: " + _some(fit.mismatched))
    if strict and (fit.missing or fit.unexpected):
        parts = [
            f"{len(names)} {what}: {_some(names)}"
            for what, names in (
                ("not in the checkpoint", fit.missing),
                ("in the checkpoint only", fit.unexpected),
            )
            if names
        ]
        raise NotFoundError(
            "the state's keys are not the checkpoint's ("
            + "; ".join(parts)
            + "); pass strict=False to load what fits, or keys=[...] to name what is wanted"
        )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more

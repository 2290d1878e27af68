"""Where does what a checkpoint holds go in a state that is already there?

The state's own layout decides: each rank wants the boxes that it holds, whatever layout they were
saved from. Everything that does not fit is found before a byte is read.
"""

# torch and NumPy leave from_numpy(), tolist() and the like untyped.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import fnmatch
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, cast

import numpy as np
import torch

from shardkeep.boxes import Box
from shardkeep.errors import ConflictError, InvalidError, LayoutError, NotFoundError
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
from shardkeep.sharded.leaves import leaf_kind, local_tensors, with_local_tensors
from shardkeep.state.adapting import adapters
from shardkeep.state.dtypes import DTYPE_NAMES, TORCH_DTYPES
from shardkeep.state.keeping import cells_identity
from shardkeep.state.live import Stored
from shardkeep.state.paths import Path, dotted, get_element, path_text
from shardkeep.state.placing import place, placed
from shardkeep.state.tree import leaves, map_tree

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Slot:
    """A box of a stored tensor, and this rank's memory for it."""

    record: TensorRecord
    box: Box
    memory: torch.Tensor


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


def stored_leaves(node: Node, path: Path = ()) -> Iterator[tuple[Path, Node]]:
    """Every leaf of a manifest's tree with its path."""
    if isinstance(node, DictNode):
        for key, child in node.items:
            yield from stored_leaves(child, (*path, key))
    elif isinstance(node, ListNode | TupleNode):
        for index, child in enumerate(node.items):
            yield from stored_leaves(child, (*path, index))
    else:
        yield path, node


def fit_state(
    manifest: Manifest,
    shadow: Any,
    *,
    me: int,
    keys: Sequence[str] | None,
    cast: bool,
    device: torch.device | None = None,
) -> Fit:
    """What goes where. `shadow` is the state with live objects replaced by their state dicts."""
    fitter = _Fitter(manifest, me, cast, device)
    stored = {path: node for path, node in stored_leaves(manifest.tree) if _is_asked(path, keys)}
    if keys is not None and not stored:
        raise NotFoundError(
            f"nothing in the checkpoint matches keys={list(keys)}; patterns are of dotted paths, "
            "such as 'model.*'"
        )
    asked = {path: leaf for path, leaf in leaves(shadow) if _is_asked(path, keys)}
    absent = [path for path in asked if path not in stored]
    for path, leaf in asked.items():
        if path in stored:
            fitter.add(path, leaf, stored.pop(path))
    fitter.add_tied({path: asked[path] for path in absent}, asked)
    fitter.fit.unexpected.extend(dotted(path) for path in stored)
    return fitter.fit


def _is_asked(path: Path, keys: Sequence[str] | None) -> bool:
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
        self.fit = Fit()

    def add(self, path: Path, leaf: Any, node: Node) -> None:
        """Fit one leaf of the state to one of the checkpoint."""
        if isinstance(node, ValueNode | PerRankNode):
            self._value(path, leaf, node)
        elif isinstance(node, SparseNode):
            self._sparse(path, leaf, node)
        elif isinstance(node, TensorNode | ArrayNode):
            self._tensor(path, leaf, self._manifest.tensors[node.index])
        self.fit.paths.append(path)

    def add_tied(self, absent: Mapping[Path, Any], leaves: Mapping[Path, Any]) -> None:
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
        layout = None if kind == "tensor" else _layout(path, leaf, self._me)
        return cells_identity(leaf, layout, memory)

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
            self.fit.slots.append(Slot(record, _whole(record.shape), memory[0]))
            return
        for part in _layout(path, leaf, self._me).parts_of(self._me):
            view = memory[part.buffer]
            if part.place.shape != view.shape:
                view = view[part.place.slices()]
            self.fit.slots.append(Slot(record, part.box, view))

    def _mismatch(self, path: Path, text: str) -> None:
        self.fit.mismatched.append(f"{path_text(path)} {text}")


# Many thousand tensors have few shapes.
@lru_cache(maxsize=1024)
def _whole(shape: tuple[int, ...]) -> Box:
    return Box.whole(shape)


def _layout(path: Path, leaf: torch.Tensor, me: int) -> Layout:
    try:
        return Layout.of(leaf, ranks=[me])
    except LayoutError as error:
        raise LayoutError(f"{path_text(path)}: {error}") from error


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


class Shadow:
    """A state with its live objects opened: what is filled, and whom to tell afterwards.

    An object is not opened if `keys` ask for nothing that was saved of it: it may make much memory.
    """

    def __init__(
        self, state: Any, manifest: Manifest, *, me: int, keys: Sequence[str] | None
    ) -> None:
        root = Stored(manifest.tree, manifest.tensors, manifest.world, me)
        found = {path: (live, root.at(*path)) for path, live in adapters(state).items()}
        self._live = {
            path: live for path, (live, stored) in found.items() if _is_open(path, stored, keys)
        }
        self._hollow = {path for path in self._live if _is_hollow(found[path][1].node)}
        self.tree = map_tree(
            lambda path, leaf: (
                self._live[path].wanted(found[path][1]) if path in self._live else leaf
            ),
            state,
        )

    def require_whole(self, paths: Iterable[Path]) -> None:
        """Raise unless the objects that can only be loaded whole are, or not at all."""
        loaded = set(paths)
        touched = self._by_owner(loaded)
        for path, _ in leaves(self.tree):
            at = self._owner(path)
            if path in loaded or at not in touched or self._live[at].is_divisible:
                continue
            raise InvalidError(
                f"only a part of {path_text(at)} would be loaded, without {dotted(path)!r}; "
                f"let keys= take all of it, such as '{dotted(at)}*', or nothing"
            )

    def put_back(self, into: Any, news: Mapping[Path, Any], loaded: Iterable[Path]) -> None:
        """Values and new tensors in their places of `into`, and live objects told of theirs.

        An object of which nothing was loaded is left alone, unless what was saved is empty.
        """
        owned = {path: value for path, value in news.items() if self._owner(path) is not None}
        place(into, {path: value for path, value in news.items() if path not in owned})
        self.tree = placed(self.tree, owned)
        touched = self._by_owner(loaded)
        for at, live in self._live.items():
            if at in touched or at in self._hollow:
                live.give(get_element(self.tree, at), touched.get(at, set()))

    def _by_owner(self, paths: Iterable[Path]) -> dict[Path, set[Path]]:
        """The live objects in which some of the paths lie, with the paths from there on."""
        found: dict[Path, set[Path]] = {}
        for path in paths:
            at = self._owner(path)
            if at is not None:
                found.setdefault(at, set()).add(path[len(at) :])
        return found

    def _owner(self, path: Path) -> Path | None:
        """The live object in which a place lies."""
        for length in range(len(path) + 1):
            if path[:length] in self._live:
                return path[:length]
        return None


def _is_open(path: Path, stored: Stored, keys: Sequence[str] | None) -> bool:
    """Whether something is asked for of an object; of one that was not saved, to be told so."""
    if keys is None or stored.node is None:
        return True
    return any(_is_asked((*path, *below), keys) for below, _ in stored_leaves(stored.node))


def _is_hollow(node: Node | None) -> bool:
    """Whether something was saved, which has no leaf to tell of it: an empty dict, say."""
    return node is not None and next(stored_leaves(node), None) is None

"""How does a checkpoint of another format become one of ours?

It is opened in place and its files are mapped: what the save writes are pages of theirs. So
nothing is read twice, and next to no memory is taken. The ranks of a group share the chunks.
"""

# torch and NumPy leave from_numpy(), frombuffer() and the like untyped.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import heapq
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shardkeep.boxes import Box
from shardkeep.errors import CorruptError, InvalidError
from shardkeep.layouts import Layout
from shardkeep.manifest import (
    ArrayNode,
    DictNode,
    Json,
    Node,
    SparseNode,
    TensorNode,
    TensorRecord,
    itemsize,
)
from shardkeep.plan import Entry, cut
from shardkeep.plan.merge_trees import relabel
from shardkeep.state.dtypes import TORCH_DTYPES
from shardkeep.state.keeping import KeptState, keep_state
from shardkeep.state.paths import flat_keys
from shardkeep.storage import CanMap
from shardkeep.storage.rooms import empty_room
from shardkeep.transfer.collecting import gc_paused
from shardkeep.transfer.load import BIT_DTYPES, Want, fill
from shardkeep.transfer.opened import Opened
from shardkeep.transfer.progress import Meter
from shardkeep.transfer.read import Array
from shardkeep.translate.choosing import Rename, choose, leaves
from shardkeep.translate.opening import format_of, open_source
from shardkeep.translate.torch_files import damage_of_torch, load_torch

# Chunks are cut into boxes of at most this size, so that ranks and files have alike much.
_SHARE_NBYTES = 64 * 2**20
_SIGNED: dict[int, Any] = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}


@dataclass(frozen=True, slots=True)
class Wishes:
    """What of the source is imported, and as what."""

    keys: Sequence[str] | None = None
    """Glob patterns of dotted paths."""
    rename: Rename | None = None
    """With it, the state becomes one flat dict of the new names."""
    under: str = ""
    """A key that everything is put below, such as `model`."""
    verify: bool = True
    """Whether the source is read once more, and first, to compare it with its checksums."""


@dataclass(frozen=True, slots=True)
class Imported:
    """What a save is given."""

    kept: KeptState
    metadata: Mapping[str, Json]


@contextmanager
def imported(
    source: Path, wishes: Wishes, *, ranks: Sequence[int], me: int, threads: int
) -> Generator[Imported]:
    """The state at `source`, as rank `me` of `ranks` keeps it; alive as long as the context."""
    match format_of(source):
        case "shardkeep":
            raise InvalidError(
                f"{source} is a checkpoint of shardkeep already; copy it with `shardkeep copy`"
            )
        case "torch":
            if wishes.verify and me == ranks[0]:
                _require_sound(
                    str(source), damage_of_torch(source, Meter("checking", None, show=False))
                )
            whole = keep_state(load_torch(source))
            tree, keys = _wished(whole.tree, wishes)
            yield Imported(_chosen(whole, tree, keys), {})
        case _:
            opened = open_source(source)
            try:
                if wishes.verify:
                    _require_sound(str(source), _damage(opened, ranks, me))
                with gc_paused():
                    kept = _Importer(opened, ranks, me, threads).keep(wishes)
                yield Imported(kept, opened.manifest.metadata)
            finally:
                opened.storage.close()


def _damage(opened: Opened, ranks: Sequence[int], me: int) -> list[str]:
    """What is wrong with this rank's share of the files, as far as their format tells."""
    manifest, at = opened.manifest, list(ranks).index(me)
    chunks: dict[int, list[tuple[TensorRecord, Box]]] = {}
    for record in manifest.tensors:
        for box, index in manifest.chunks(record):
            chunks.setdefault(index, []).append((record, box))
    with Meter("checking", None, show=False) as meter:
        return [
            problem
            for index in range(at, len(manifest.files), len(ranks))
            for problem in opened.places.damage(index, chunks.get(index, ()), meter)
        ]


def _require_sound(source: str, problems: Sequence[str]) -> None:
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise CorruptError(f"{source} is damaged, nothing was imported: {problems[0]}{more}")


Keys = Mapping[int, str]
"""What each tensor that is wanted is called, by its number."""


def _wished(tree: Node, wishes: Wishes) -> tuple[Node, Keys]:
    """The structure that is wanted, with the source's numbers, and the names of its tensors."""
    if wishes.keys is not None or wishes.rename is not None:
        tree = choose(tree, keys=wishes.keys, rename=wishes.rename).tree
    if wishes.under:
        tree = DictNode(((wishes.under, tree),))
    paths: dict[int, tuple[Any, ...]] = {}
    for path, leaf in leaves(tree):
        for suffix, number in _numbers(leaf):
            paths.setdefault(number, (*path, *suffix))
    texts = flat_keys(paths.values())
    return tree, {number: texts[path] for number, path in paths.items()}


def _numbers(leaf: Node) -> list[tuple[tuple[str, ...], int]]:
    """The tensors of a leaf, each with the rest of its path."""
    if isinstance(leaf, TensorNode | ArrayNode):
        return [((), leaf.index)]
    if isinstance(leaf, SparseNode):
        return [((name,), part.index) for name, part in leaf.parts if isinstance(part, TensorNode)]
    return []


def _renumbered(tree: Node, keys: Keys) -> Node:
    """The structure with the tensors numbered in the order of their names."""
    numbers = [-1] * (max(keys, default=-1) + 1)
    for new, old in enumerate(keys):
        numbers[old] = new
    return relabel(tree, numbers)


def _chosen(whole: KeptState, tree: Node, keys: Keys) -> KeptState:
    """A part of what was kept, under its new names."""
    old = list(whole.entries)
    return replace(
        whole,
        tree=_renumbered(tree, keys),
        entries={key: whole.entries[old[number]] for number, key in keys.items()},
        memory={key: whole.memory[old[number]] for number, key in keys.items()},
    )


@dataclass(frozen=True, slots=True)
class _Share:
    """A box that one rank writes, and the chunk that it lies in."""

    rank: int
    box: Box
    chunk: Box
    file: int


class _Importer:
    def __init__(self, opened: Opened, ranks: Sequence[int], me: int, threads: int) -> None:
        self._opened = opened
        self._loads = [(0, rank) for rank in ranks]
        self._me = me
        self._threads = threads
        self._maps: dict[int, Array] = {}

    def keep(self, wishes: Wishes) -> KeptState:
        manifest = self._opened.manifest
        tree, keys = _wished(manifest.tree, wishes)
        kept = KeptState(_renumbered(tree, keys))
        records = {key: manifest.tensors[number] for number, key in keys.items()}
        for key in sorted(records, key=lambda key: (-records[key].nbytes, key)):
            shares = self._shares(records[key])
            layout = self._layout(records[key], shares)
            kept.entries[key] = Entry(records[key].dtype, records[key].shape, layout)
            kept.memory[key] = self._memory(records[key], shares)
        # The tree counts them in this order.
        kept.entries = {key: kept.entries[key] for key in records}
        return kept

    def _layout(self, record: TensorRecord, shares: Sequence[_Share]) -> Layout | None:
        if not shares:
            return None
        return Layout.listed(record.shape, [(share.rank, share.box) for share in shares])

    def _shares(self, record: TensorRecord) -> list[_Share]:
        """Who writes what; every rank comes to the same answer."""
        found: list[_Share] = []
        size = itemsize(record.dtype)
        for chunk, file in self._opened.manifest.chunks(record):
            for piece in cut(chunk.shape, max(1, _SHARE_NBYTES // size)):
                load, rank = self._loads[0]
                heapq.heapreplace(self._loads, (load + piece.numel * size, rank))
                found.append(_Share(rank, piece.shifted(chunk.start), chunk, file))
        return found

    def _memory(self, record: TensorRecord, shares: Sequence[_Share]) -> list[torch.Tensor]:
        if not shares:
            return [torch.empty(record.shape, dtype=TORCH_DTYPES[record.dtype])]
        return [self._tensor(record, share) for share in shares if share.rank == self._me]

    def _tensor(self, record: TensorRecord, share: _Share) -> torch.Tensor:
        size = itemsize(record.dtype)
        bits = self._mapped(record, share)
        if bits is None:
            bits = empty_room(share.box.shape, BIT_DTYPES[size])
            self._read(record, share.box, bits)
        signed = bits.view(_SIGNED.get(size, bits.dtype))
        with warnings.catch_warnings():
            # Mapped memory is read-only, and nobody writes to it.
            warnings.simplefilter("ignore")
            return torch.from_numpy(signed).view(TORCH_DTYPES[record.dtype])

    def _mapped(self, record: TensorRecord, share: _Share) -> Array | None:
        """The box's bytes in the file, wherever they start; None if they do not lie in it so."""
        file = self._map(share.file)
        entry = self._opened.places.chunk(share.file, record, share.chunk)
        if file is None or entry.stop > file.nbytes:
            return None
        # Pieces of `cut` follow each other: each starts where its first cell lies.
        inside = share.box.relative_to(share.chunk.start)
        first = int(np.ravel_multi_index(inside.start, share.chunk.shape)) if inside.ndim else 0
        start = entry.start + first * itemsize(record.dtype)
        bits = file[start : start + share.box.numel * itemsize(record.dtype)]
        return bits.view(BIT_DTYPES[itemsize(record.dtype)]).reshape(share.box.shape)

    def _map(self, index: int) -> Array | None:
        storage = self._opened.storage
        if not isinstance(storage, CanMap):
            return None
        if index not in self._maps:
            name = self._opened.manifest.file_name(index)
            self._maps[index] = np.frombuffer(storage.map(name), np.uint8)
        return self._maps[index]

    def _read(self, record: TensorRecord, box: Box, bits: Array) -> None:
        with Meter("importing", None, show=False) as meter:
            want = Want(record, box, bits)
            fill(self._opened, [want], threads=self._threads, verify=True, meter=meter)

"""Which tensors does an export write, under which names, and where do they lie in which file?"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from shardkeep.boxes import Box
from shardkeep.errors import ConflictError, InvalidError, NotFoundError, UnsupportedError
from shardkeep.manifest import (
    ArrayNode,
    DictNode,
    ListNode,
    Manifest,
    Node,
    SparseNode,
    TensorNode,
    TensorRecord,
    TupleNode,
    itemsize,
    tensor_nbytes,
)
from shardkeep.plan import cut
from shardkeep.translate.casting import float_dtype, is_float
from shardkeep.translate.safetensors_header import METADATA, THEIR_DTYPES, encode_header

Rename = Callable[[str], str | None]
"""The name that a tensor gets; None leaves it out."""

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class OutTensor:
    """A stored tensor, and what it is called and of which dtype in the export."""

    name: str
    dtype: str
    record: TensorRecord

    @property
    def nbytes(self) -> int:
        return tensor_nbytes(self.dtype, self.record.shape)

    @property
    def is_cast(self) -> bool:
        return self.dtype != self.record.dtype


@dataclass(frozen=True, slots=True)
class Selection:
    """What is exported, in the order of the state."""

    tensors: tuple[OutTensor, ...]
    tied: Mapping[str, str]
    """Further names of tensors, each with the name that it is written under."""
    skipped: tuple[str, ...]
    """Asked for, but no tensors, or left out by `rename`."""


def select_tensors(
    manifest: Manifest,
    *,
    keys: Sequence[str] | None,
    prefix: str,
    rename: Rename | None,
    dtype: str | None,
) -> Selection:
    """The tensors that are asked for, each once: safetensors has no way to share one.

    Of several names of a tied tensor the first in the state's order is kept. That is the one that
    transformers looks for: it puts embeddings before the heads that are tied to them.
    """
    to = float_dtype(dtype) if dtype is not None else None
    named: dict[str, OutTensor] = {}
    tied: dict[str, str] = {}
    skipped: list[str] = []
    first: dict[int, str] = {}
    for source, node in _asked(manifest, keys, prefix):
        name = _name(source, prefix, rename)
        if isinstance(node, SparseNode):
            raise UnsupportedError(
                f"{source!r} is sparse, which safetensors cannot hold; leave it out with keys="
            )
        if name is None or not isinstance(node, TensorNode | ArrayNode):
            skipped.append(source)
            continue
        if name in named or name in tied:
            raise ConflictError(f"{source!r} and another tensor would both be called {name!r}")
        if node.index in first:
            tied[name] = first[node.index]
            continue
        first[node.index] = name
        record = manifest.tensors[node.index]
        named[name] = OutTensor(name, _dtype(record, to), record)
    if not named:
        raise NotFoundError(_nothing(manifest, keys, prefix))
    return Selection(tuple(named.values()), tied, tuple(skipped))


def _asked(
    manifest: Manifest, keys: Sequence[str] | None, prefix: str
) -> Iterator[tuple[str, Node]]:
    for path, node in _leaves(manifest.tree, ()):
        name = ".".join(map(str, path))
        is_key = keys is None or any(fnmatch.fnmatchcase(name, pattern) for pattern in keys)
        if is_key and name.startswith(prefix):
            yield name, node


def _leaves(
    node: Node, path: tuple[str | int, ...]
) -> Iterator[tuple[tuple[str | int, ...], Node]]:
    if isinstance(node, DictNode):
        for key, child in node.items:
            yield from _leaves(child, (*path, key))
    elif isinstance(node, ListNode | TupleNode):
        for index, child in enumerate(node.items):
            yield from _leaves(child, (*path, index))
    else:
        yield path, node


def _name(source: str, prefix: str, rename: Rename | None) -> str | None:
    plain = source.removeprefix(prefix)
    name = rename(plain) if rename is not None else plain
    if name is not None and (type(name) is not str or name in ("", METADATA)):
        raise InvalidError(f"{source!r} cannot be called {name!r} in a safetensors file")
    return name


def _dtype(record: TensorRecord, to: str | None) -> str:
    dtype = to if to is not None and is_float(record.dtype) else record.dtype
    if dtype not in THEIR_DTYPES:
        raise UnsupportedError(
            f"{record.key!r} is {dtype}, which safetensors cannot hold; leave it out with keys="
        )
    return dtype


def _nothing(manifest: Manifest, keys: Sequence[str] | None, prefix: str) -> str:
    asked = f"keys={list(keys)}" if keys is not None else ""
    asked += f"{' and ' if asked else ''}prefix={prefix!r}" if prefix else ""
    names = [record.key for record in manifest.tensors[:_SHOWN]]
    there = f"; there are {', '.join(names)}" if names else ""
    return f"no tensor of the checkpoint is asked for{' by ' + asked if asked else ''}{there}"


@dataclass(frozen=True, slots=True)
class OutFile:
    """A file to be written: its header, and the tensors whose data follow it."""

    name: str
    header: bytes
    tensors: tuple[OutTensor, ...]

    @property
    def nbytes(self) -> int:
        return len(self.header) + sum(tensor.nbytes for tensor in self.tensors)


def plan_files(
    selection: Selection, *, max_shard_nbytes: int, names: Callable[[int, int], str]
) -> list[OutFile]:
    """The files, each of at most `max_shard_nbytes` of data unless one tensor alone is larger.

    `names` gives the name of file number i (from 1) of n.
    """
    if max_shard_nbytes < 1:
        raise InvalidError(f"a shard has at least 1 byte, max_shard_nbytes is {max_shard_nbytes}")
    shards: list[list[OutTensor]] = [[]]
    room = max_shard_nbytes
    for tensor in selection.tensors:
        if shards[-1] and tensor.nbytes > room:
            shards.append([])
            room = max_shard_nbytes
        shards[-1].append(tensor)
        room -= tensor.nbytes
    return [
        _file(names(number, len(shards)), shard, selection.tied)
        for number, shard in enumerate(shards, 1)
    ]


def _file(name: str, tensors: Iterable[OutTensor], tied: Mapping[str, str]) -> OutFile:
    # The largest items first: so all lie at a multiple of their size.
    ordered = tuple(sorted(tensors, key=lambda one: -itemsize(one.dtype)))
    mine = {one.name for one in ordered}
    aliases = {other: kept for other, kept in tied.items() if kept in mine}
    specs = [(one.name, one.dtype, one.record.shape) for one in ordered]
    return OutFile(name, encode_header(specs, {**aliases, "format": "pt"}), ordered)


@dataclass(frozen=True, slots=True)
class Part:
    """A box of a tensor, and where its bytes start in its batch."""

    tensor: OutTensor
    box: Box
    start: int

    @property
    def nbytes(self) -> int:
        return self.box.numel * itemsize(self.tensor.dtype)


@dataclass(frozen=True, slots=True)
class Batch:
    """Bytes of a file that are read, and written, in one go."""

    start: int
    """In the file."""
    nbytes: int
    parts: tuple[Part, ...]


def plan_batches(file: OutFile, max_nbytes: int) -> Iterator[Batch]:
    """The data of a file in pieces, in its order; small tensors together, large ones cut."""
    start = len(file.header)
    parts: list[Part] = []
    nbytes = held = 0
    for tensor, box in _pieces(file.tensors, max_nbytes):
        needed = box.numel * _wider(tensor)
        if parts and held + needed > max_nbytes:
            yield Batch(start, nbytes, tuple(parts))
            start += nbytes
            parts, nbytes, held = [], 0, 0
        parts.append(Part(tensor, box, nbytes))
        nbytes += parts[-1].nbytes
        held += needed
    if parts:
        yield Batch(start, nbytes, tuple(parts))


def _wider(tensor: OutTensor) -> int:
    """The size of an item where it is larger, before or after the cast."""
    return max(itemsize(tensor.dtype), itemsize(tensor.record.dtype))


def _pieces(tensors: Iterable[OutTensor], max_nbytes: int) -> Iterator[tuple[OutTensor, Box]]:
    for tensor in tensors:
        if tensor.nbytes:
            for box in cut(tensor.record.shape, max(1, max_nbytes // _wider(tensor))):
                yield tensor, box

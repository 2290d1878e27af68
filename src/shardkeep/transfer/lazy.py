"""What is in a checkpoint, read only as far as somebody looks?"""

# torch and NumPy leave from_numpy(), tolist() and the like untyped.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from shardkeep.boxes import Box
from shardkeep.errors import InvalidError
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
)
from shardkeep.storage.rooms import empty_room
from shardkeep.transfer.load import BIT_DTYPES, Want, fill, map_chunk, require_stored
from shardkeep.transfer.open_manifest import Chunks
from shardkeep.transfer.opened import Opened
from shardkeep.transfer.own_values import own_value
from shardkeep.transfer.progress import Meter, Progress
from shardkeep.transfer.read import Array
from shardkeep.transfer.report import SaveReport, read_report

if TYPE_CHECKING:
    import torch

# What NumPy has no type for comes as bits of the same size.
NUMPY_DTYPES: dict[str, Any] = {
    "BOOL": np.bool_,
    "U8": np.uint8,
    "I8": np.int8,
    "U16": np.uint16,
    "I16": np.int16,
    "U32": np.uint32,
    "I32": np.int32,
    "U64": np.uint64,
    "I64": np.int64,
    "F16": np.float16,
    "F32": np.float32,
    "F64": np.float64,
    "C64": np.complex64,
    "C128": np.complex128,
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A stored tensor, without its values."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    chunks: tuple[tuple[Box, str], ...]
    """Each stored box with its file."""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What a verification found."""

    nbytes: int
    problems: tuple[str, ...]
    """One sentence for each damaged file or block; empty if all is well."""

    def __bool__(self) -> bool:
        return not self.problems


class Checkpoint(Mapping[str, "StoredTensor"]):
    """A committed checkpoint: tensors by key, each read when it is indexed. Use it in `with`.

    It shows the checkpoint as it was when it was opened.
    """

    def __init__(self, opened: Opened, *, threads: int, owns_storage: bool) -> None:
        self._opened = opened
        self._storage = opened.storage
        self._owns_storage = owns_storage
        self._threads = threads
        self.manifest: Manifest = opened.manifest

    @property
    def path(self) -> str:
        """Where it lies."""
        return self._storage.location

    @property
    def save_id(self) -> str:
        """The name of the save that made it; another save has another one."""
        return self.manifest.save_id

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The user's own, given at the save."""
        return self.manifest.metadata

    def report(self) -> SaveReport | None:
        """How the save went, rank by rank; None if that was not kept."""
        return read_report(self._storage, self.save_id)

    def __getitem__(self, key: str) -> StoredTensor:
        return StoredTensor(self, self.manifest.tensor(key))

    def __iter__(self) -> Iterator[str]:
        return (record.key for record in self.manifest.tensors)

    def __len__(self) -> int:
        return len(self.manifest.tensors)

    def tree(self) -> Any:
        """The state's structure with a StoredTensor for each tensor; reads no data.

        Arrays stand in it as tensors, sparse tensors as dicts of their parts.
        """
        from shardkeep.state.building import build_state

        return build_state(
            _by_tensors(self.manifest.tree),
            lambda number: StoredTensor(self, self.manifest.tensors[number]),  # type: ignore[arg-type,return-value]
            lambda key: f"per_rank({key})",
        )

    def per_rank(self, key: str, rank: int) -> Any:
        """The value that `rank` saved under `key` as its own."""
        return own_value(self._opened, key, rank)

    def info(self, key: str) -> TensorInfo:
        """Dtype, shape, size and chunks of a tensor; reads no data."""
        record = self.manifest.tensor(key)
        chunks = tuple(
            (box, self.manifest.file_name(index)) for box, index in self.manifest.chunks(record)
        )
        return TensorInfo(key, record.dtype, record.shape, record.nbytes, chunks)

    def read(self, record: TensorRecord, box: Box) -> Array:
        """A box of a tensor as bits of the stored item size, checked."""
        require_stored(self._opened, [(record, box)], threads=self._threads)
        array = empty_room(box.shape, BIT_DTYPES[itemsize(record.dtype)])
        with Meter("reading", None, show=False) as meter:
            fill(
                self._opened,
                [Want(record, box, array)],
                threads=self._threads,
                verify=True,
                meter=meter,
            )
        return array

    def mapped(self, record: TensorRecord) -> Array | None:
        """A tensor in the storage's own memory, if it is one chunk and the storage can."""
        chunks = list(self.manifest.chunks(record))
        if len(chunks) != 1:
            return None
        ((box, index),) = chunks
        return map_chunk(self._opened, record, box, index)

    def verify(self, *, progress: Progress | None = None) -> VerifyReport:
        """Read every byte of every file and compare it with its digest."""
        problems: list[str] = []
        with Meter("verifying", progress, show=True) as meter:
            meter.expect(sum(self.manifest.files.nbytes))
            with ThreadPoolExecutor(self._threads, "shardkeep-verify") as pool:
                chunks, damage = self._chunks_by_file, self._opened.places.damage
                acts = [
                    pool.submit(damage, index, chunks.get(index, ()), meter)
                    for index in range(len(self.manifest.files))
                ]
                for act in acts:
                    problems.extend(act.result())
        return VerifyReport(sum(self.manifest.files.nbytes), tuple(problems))

    @property
    def _chunks_by_file(self) -> Mapping[int, Chunks]:
        if not hasattr(self, "_by_file"):
            found: dict[int, list[tuple[TensorRecord, Box]]] = {}
            for record in self.manifest.tensors:
                for box, index in self.manifest.chunks(record):
                    found.setdefault(index, []).append((record, box))
            self._by_file = found
        return self._by_file

    def close(self) -> None:
        """Let go of open files; a storage that the caller made stays open."""
        if self._owns_storage:
            self._storage.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"Checkpoint({self.path!r}, {len(self)} tensors, "
            f"{sum(record.nbytes for record in self.manifest.tensors):,} bytes, "
            f"saved by {self.manifest.world} ranks)"
        )


def _by_tensors(node: Node) -> Node:
    """The structure with nothing in it that takes data to make."""
    if isinstance(node, ArrayNode):
        return TensorNode(node.index)
    if isinstance(node, SparseNode):
        return DictNode(node.parts)
    if isinstance(node, DictNode):
        return replace(node, items=tuple((key, _by_tensors(one)) for key, one in node.items))
    if isinstance(node, ListNode | TupleNode):
        return replace(node, items=tuple(map(_by_tensors, node.items)))
    return node


class StoredTensor:
    """A tensor in a checkpoint. Indexing with slices reads just those cells, as a torch tensor."""

    def __init__(self, checkpoint: Checkpoint, record: TensorRecord) -> None:
        self._checkpoint = checkpoint
        self._record = record

    @property
    def key(self) -> str:
        """Its dotted path."""
        return self._record.key

    @property
    def shape(self) -> tuple[int, ...]:
        """Its global shape."""
        return self._record.shape

    @property
    def dtype(self) -> str:
        """The dtype's name in the format, such as `F32`."""
        return self._record.dtype

    @property
    def nbytes(self) -> int:
        """The bytes of its values."""
        return self._record.nbytes

    def __getitem__(self, index: Any) -> torch.Tensor:
        import torch

        from shardkeep.state.dtypes import TORCH_DTYPES

        box, squeezed = _parse_index(index, self.shape)
        bits = self._checkpoint.read(self._record, box)
        signed = bits.view(_SIGNED.get(bits.dtype.itemsize, bits.dtype))
        tensor = torch.from_numpy(signed).view(TORCH_DTYPES[self.dtype])
        return tensor[tuple(0 if d in squeezed else slice(None) for d in range(box.ndim))]

    def numpy(self, index: Any = ...) -> Array:
        """The cells as a NumPy array; dtypes that NumPy lacks come as bits of the same size."""
        box, squeezed = _parse_index(index, self.shape)
        bits = self._checkpoint.read(self._record, box)
        array = bits.view(NUMPY_DTYPES.get(self.dtype, bits.dtype))
        # The ellipsis keeps a single cell an array.
        return array[(*(0 if d in squeezed else slice(None) for d in range(box.ndim)), ...)]

    def mapped(self) -> Array:
        """The whole tensor without a copy, read-only and unchecked; one chunk, one file only."""
        array = self._checkpoint.mapped(self._record)
        if array is None:
            raise InvalidError(
                f"{self.key!r} is stored in several chunks, or its storage cannot be mapped; "
                "index it instead"
            )
        return array.view(NUMPY_DTYPES.get(self.dtype, array.dtype))

    def __repr__(self) -> str:
        return f"StoredTensor({self.key!r}, {self.dtype}, {list(self.shape)})"


_SIGNED: dict[int, Any] = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}


def _parse_index(index: Any, shape: Sequence[int]) -> tuple[Box, set[int]]:
    """The box that an index means, and the dims that it takes away."""
    items = list(index) if isinstance(index, tuple) else [index]
    if any(item is ... for item in items):
        at = next(at for at, item in enumerate(items) if item is ...)
        items[at : at + 1] = [slice(None)] * (len(shape) - len(items) + 1)
    if len(items) > len(shape):
        raise IndexError(f"{len(items)} indices for a tensor of shape {tuple(shape)}")
    items += [slice(None)] * (len(shape) - len(items))
    starts, stops, squeezed = [], [], set[int]()
    for dim, (item, side) in enumerate(zip(items, shape, strict=True)):
        if isinstance(item, slice):
            start, stop, step = item.indices(side)
            if step != 1:
                raise IndexError("slices of a stored tensor have step 1")
        else:
            if isinstance(item, bool) or not hasattr(item, "__index__"):
                raise IndexError(f"{item!r} is no index: stored tensors take ints and slices")
            start = int(item) + side if item < 0 else int(item)
            if not 0 <= start < side:
                raise IndexError(f"index {item} is out of range for dim {dim} of size {side}")
            stop = start + 1
            squeezed.add(dim)
        starts.append(start)
        stops.append(max(start, stop))
    return Box(tuple(starts), tuple(stops)), squeezed

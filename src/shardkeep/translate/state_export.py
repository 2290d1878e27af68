"""What does an export of a whole state write: which tensors, of which dtype, read piece by piece?

For formats that keep structure and values, too: DCP and torch.save.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shardkeep.boxes import Box
from shardkeep.errors import UnsupportedError
from shardkeep.manifest import (
    ArrayNode,
    Node,
    SparseNode,
    TensorNode,
    TensorRecord,
    itemsize,
    tensor_nbytes,
)
from shardkeep.storage.rooms import empty_room
from shardkeep.transfer.load import BIT_DTYPES, Want, fill
from shardkeep.transfer.opened import Opened
from shardkeep.transfer.progress import Meter
from shardkeep.transfer.read import Array
from shardkeep.translate.casting import cast_bits, float_dtype, is_float
from shardkeep.translate.choosing import Rename, choose, dotted, leaves

# Of a piece that is cast: as stored, as numbers, as another dtype.
_CAST_COPIES = 4
_MAX_PIECE_NBYTES = 16 * 2**20
_MIN_PIECE_NBYTES = 2**16


@dataclass(frozen=True, slots=True)
class OutState:
    """A state to be written: its structure, and its tensors by their number in the source."""

    tree: Node
    dtypes: dict[int, str]
    """What each tensor is written as."""
    skipped: tuple[str, ...]
    names: dict[int, str]
    """A name for each tensor: the first of its places."""

    def nbytes_of(self, number: int, record: TensorRecord) -> int:
        return tensor_nbytes(self.dtypes[number], record.shape)


def select_state(
    source: Opened,
    *,
    keys: Sequence[str] | None,
    prefix: str,
    rename: Rename | None,
    dtype: str | None,
) -> OutState:
    """What is asked for of a checkpoint; refuses what the formats cannot hold."""
    to = float_dtype(dtype) if dtype is not None else None
    choice = choose(source.manifest.tree, keys=keys, prefix=prefix, rename=rename)
    dtypes: dict[int, str] = {}
    names: dict[int, str] = {}
    for path, leaf in leaves(choice.tree):
        if isinstance(leaf, SparseNode):
            raise UnsupportedError(
                f"{dotted(path)!r} is sparse, which is not exported; leave it out with keys="
            )
        if isinstance(leaf, TensorNode | ArrayNode):
            stored = source.manifest.tensors[leaf.index].dtype
            dtypes[leaf.index] = to if to is not None and is_float(stored) else stored
            names.setdefault(leaf.index, dotted(path))
    return OutState(choice.tree, dtypes, choice.skipped, names)


def tied_names(state: OutState) -> dict[str, str]:
    """Further names of tensors, each with the first."""
    return {
        dotted(path): state.names[leaf.index]
        for path, leaf in leaves(state.tree)
        if isinstance(leaf, TensorNode | ArrayNode) and dotted(path) != state.names[leaf.index]
    }


def piece_nbytes(max_memory_nbytes: int, threads: int) -> int:
    """How large a piece may be, so that all threads together stay within the memory."""
    room = max_memory_nbytes // (threads * (1 + _CAST_COPIES))
    return max(_MIN_PIECE_NBYTES, min(room, _MAX_PIECE_NBYTES))


@dataclass
class PieceReader:
    """Reads boxes of tensors as they are to be written; several threads may share it."""

    source: Opened
    state: OutState
    overflowed: set[str] = field(default_factory=set[str])
    """Tensors of which finite values became infinite."""

    def read(self, number: int, box: Box) -> Array:
        """The box as bits, checked and cast."""
        record, dtype = self.source.manifest.tensors[number], self.state.dtypes[number]
        bits = empty_room(box.shape, BIT_DTYPES[itemsize(record.dtype)])
        with Meter("exporting", None, show=False) as quiet:
            fill(self.source, [Want(record, box, bits)], threads=1, verify=True, meter=quiet)
        if dtype == record.dtype:
            return bits
        made = np.empty(box.shape, BIT_DTYPES[itemsize(dtype)])
        # A 0-dim array would come out of NumPy's functions as a scalar.
        if cast_bits(bits.reshape(-1), record.dtype, dtype, made.reshape(-1)):
            self.overflowed.add(self.state.names[number])
        return made

    def tensor(self, number: int, box: Box | None = None) -> Any:
        """The box, or all of it, as a torch tensor."""
        import torch

        from shardkeep.state.dtypes import TORCH_DTYPES

        if box is None:
            box = Box.whole(self.source.manifest.tensors[number].shape)
        bits = self.read(number, box)
        signed = bits.view(_SIGNED.get(bits.dtype.itemsize, bits.dtype))
        made: Any = torch.from_numpy(signed)  # pyright: ignore[reportUnknownMemberType]
        return made.view(TORCH_DTYPES[self.state.dtypes[number]])


_SIGNED: dict[int, Any] = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}

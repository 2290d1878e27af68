"""What structure had the state that was saved?

A tree of nodes. Tensors and arrays stand in it by their number in the manifest's list, so that
tied tensors are the same number twice. Values are kept as they are written (see `values`): a
manifest can be read where a value's type is not known.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from shardkeep.manifest.plain_json import Json
from shardkeep.manifest.values import decode_value, encode_value


# Made by the 10,000s: a Struct is many times as fast as a dataclass, and has nothing to collect.
class TensorNode(msgspec.Struct, frozen=True, gc=False):
    """The tensor with this number."""

    index: int


class ArrayNode(msgspec.Struct, frozen=True, gc=False):
    """A NumPy array, stored as the tensor with this number."""

    index: int


@dataclass(frozen=True, slots=True)
class DictNode:
    """A dict in its order; `ordered`: an OrderedDict."""

    items: tuple[tuple[str | int, Node], ...]
    ordered: bool = False


@dataclass(frozen=True, slots=True)
class ListNode:
    """A list."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class TupleNode:
    """A tuple."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ValueNode:
    """A value as `encode_value` writes it. Equal if written alike: 1 is not True, nan is nan.

    >>> ValueNode.of(2**60)
    ValueNode(data={'int': '1152921504606846976'})
    >>> ValueNode.of(1) == ValueNode.of(True)
    False
    """

    data: Json
    """Not to be changed."""

    @classmethod
    def of(cls, value: object) -> ValueNode:
        """The node of a Python value."""
        return cls(encode_value(value))

    @property
    def value(self) -> object:
        """The Python value; its type must be known."""
        return decode_value(self.data)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ValueNode) and self._text() == other._text()

    def __hash__(self) -> int:
        return hash(self._text())

    def _text(self) -> bytes:
        return msgspec.json.encode(self.data)


@dataclass(frozen=True, slots=True)
class PerRankNode:
    """A value of which every rank has its own, under this key in its file number 0."""

    key: str


@dataclass(frozen=True, slots=True)
class SparseNode:
    """A sparse tensor by its parts; `coalesced` is False unless the layout is sparse_coo."""

    layout: str
    shape: tuple[int, ...]
    coalesced: bool
    parts: tuple[tuple[str, Node], ...]
    """Tensors by name, in the order of SPARSE_PARTS."""


Node = (
    TensorNode | ArrayNode | DictNode | ListNode | TupleNode | ValueNode | PerRankNode | SparseNode
)

_ROWS = ("crow_indices", "col_indices", "values")
_COLUMNS = ("ccol_indices", "row_indices", "values")
SPARSE_PARTS = {
    "sparse_coo": ("indices", "values"),
    "sparse_csr": _ROWS,
    "sparse_csc": _COLUMNS,
    "sparse_bsr": _ROWS,
    "sparse_bsc": _COLUMNS,
}
"""The parts of each sparse layout."""

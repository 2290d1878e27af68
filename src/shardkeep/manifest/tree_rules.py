"""What holds for the nodes of a tree, be they written or read?"""

from __future__ import annotations

from collections.abc import Sequence

from shardkeep.errors import InvalidError
from shardkeep.manifest.dtypes import tensor_nbytes
from shardkeep.manifest.limits import EXACT_INT, MAX_TREE_DEPTH
from shardkeep.manifest.nodes import SPARSE_PARTS, SparseNode, TensorNode
from shardkeep.manifest.plain_json import shown


class TreeRules:
    """Checks of single nodes of a tree of so many tensors; each raises InvalidError."""

    def __init__(self, tensor_count: int, per_rank: Sequence[str]) -> None:
        self.tensor_count = tensor_count
        self._per_rank = frozenset(per_rank)

    def check_index(self, index: object) -> None:
        if type(index) is not int or not 0 <= index < self.tensor_count:
            raise InvalidError(f"tree: {shown(index)} is not one of {self.tensor_count} tensors")

    def check_depth(self, depth: int) -> None:
        if depth > MAX_TREE_DEPTH:
            raise InvalidError(f"tree: nested deeper than {MAX_TREE_DEPTH} levels")

    def check_keys(self, keys: Sequence[object]) -> None:
        for key in keys if set(map(type, keys)) != {str} else ():
            if type(key) is not str and (type(key) is not int or abs(key) >= EXACT_INT):
                raise InvalidError(
                    f"tree: key {shown(key)} is neither a string nor an integer below 2**53"
                )
        if len(set(keys)) != len(keys):
            raise InvalidError("tree: a dict has the same key twice")

    def check_per_rank(self, key: object) -> None:
        if type(key) is not str or key not in self._per_rank:
            raise InvalidError(f"tree: {shown(key)} is not listed in per_rank")

    def check_sparse(self, node: SparseNode) -> None:
        names = tuple([name for name, _ in node.parts])
        if node.layout not in SPARSE_PARTS or names != SPARSE_PARTS[node.layout]:
            raise InvalidError(
                f"tree: a {shown(node.layout)} tensor of {len(names)} parts, not its own"
            )
        if not all(type(part) is TensorNode for _, part in node.parts):
            raise InvalidError("tree: a part of a sparse tensor is no tensor")
        if node.coalesced and node.layout != "sparse_coo":
            raise InvalidError(f"tree: a {node.layout} tensor cannot be coalesced")
        tensor_nbytes("BOOL", node.shape)

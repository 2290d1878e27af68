"""What is to be filled where the checkpoint alone knows the structure?"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch

from shardkeep.manifest import (
    ArrayNode,
    DictNode,
    ListNode,
    Node,
    SparseNode,
    TensorNode,
    TupleNode,
)
from shardkeep.sharded.leaves import leaf_kind
from shardkeep.state.dtypes import TORCH_DTYPES
from shardkeep.state.live import Stored


def like_stored(stored: Stored, old: Any) -> Any:
    """A tree of the stored structure, with the tensors of `old` that stand in the same places.

    Where there is none of the stored shape, there is memory for the whole tensor; a tensor that is
    divided among ranks stays, so that a wrong shape is found. Values are None, to be replaced.
    """
    if stored.node is None:
        return None
    return _like(stored.node, old, stored)


def _like(node: Node, old: Any, stored: Stored) -> Any:
    if isinstance(node, DictNode):
        items = [(key, _like(child, _at(old, key), stored)) for key, child in node.items]
        return OrderedDict(items) if node.ordered else dict(items)
    if isinstance(node, ListNode | TupleNode):
        made = [_like(child, _at(old, at), stored) for at, child in enumerate(node.items)]
        return made if isinstance(node, ListNode) else tuple(made)
    if isinstance(node, TensorNode | ArrayNode):
        return _tensor(node, old, stored)
    if isinstance(node, SparseNode):
        values = dict(node.parts)["values"]
        record = stored.records[cast("TensorNode", values).index]
        layout: torch.layout = getattr(torch, node.layout)
        return _empty_sparse(node.shape, TORCH_DTYPES[record.dtype], layout)
    return None


def _at(old: Any, key: str | int) -> Any:
    if isinstance(old, Mapping):
        return cast("Mapping[Any, Any]", old).get(key)
    if isinstance(old, list | tuple) and isinstance(key, int):
        several = cast("Sequence[Any]", old)
        return several[key] if key < len(several) else None
    return None


def _tensor(node: TensorNode | ArrayNode, old: Any, stored: Stored) -> Any:
    record = stored.records[node.index]
    dtype = TORCH_DTYPES[record.dtype]
    if leaf_kind(old) in ("dtensor", "sharded"):
        return old
    if leaf_kind(old) == "tensor" and tuple(old.shape) == record.shape and old.dtype == dtype:
        return old
    made = torch.empty(record.shape, dtype=dtype)
    return made if isinstance(node, TensorNode) else cast("np.ndarray[Any, Any]", made.numpy())


def _empty_sparse(shape: tuple[int, ...], dtype: torch.dtype, layout: torch.layout) -> Any:
    """Takes no memory; it says only what is wanted."""
    return torch.zeros(shape, dtype=dtype, layout=layout)

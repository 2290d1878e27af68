"""What is to be filled where the checkpoint alone knows the structure?"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    TensorRecord,
    TupleNode,
)
from shardkeep.sharded.leaves import leaf_kind
from shardkeep.state.dtypes import TORCH_DTYPES
from shardkeep.state.live import Stored


def like_stored(stored: Stored, old: Any, *, device: torch.device | None = None) -> Any:
    """A tree of the stored structure, with the tensors of `old` that stand in the same places.

    Where there is none of the stored shape, there is memory for the whole tensor; a tensor that is
    divided among ranks stays, so that a wrong shape is found. Values are None, to be replaced.
    """
    if stored.node is None:
        return None
    return _Likeness(stored.records, device).of(stored.node, old)


@dataclass(frozen=True, slots=True)
class _Likeness:
    records: Sequence[TensorRecord]
    device: torch.device | None

    def of(self, node: Node, old: Any) -> Any:
        if isinstance(node, DictNode):
            made = {key: self.of(child, _at(old, key)) for key, child in node.items}
            return _dict_like(made, old, ordered=node.ordered)
        if isinstance(node, ListNode | TupleNode):
            items = [self.of(child, _at(old, at)) for at, child in enumerate(node.items)]
            return items if isinstance(node, ListNode) else tuple(items)
        if isinstance(node, TensorNode | ArrayNode):
            return self._tensor(node, old)
        return self._sparse(node) if isinstance(node, SparseNode) else None

    def _tensor(self, node: TensorNode | ArrayNode, old: Any) -> Any:
        record = self.records[node.index]
        dtype = TORCH_DTYPES[record.dtype]
        if leaf_kind(old) in ("dtensor", "sharded"):
            return old
        if leaf_kind(old) == "tensor" and tuple(old.shape) == record.shape and old.dtype == dtype:
            return old
        if isinstance(node, TensorNode):
            return torch.empty(record.shape, dtype=dtype, device=self.device)
        return cast("np.ndarray[Any, Any]", torch.empty(record.shape, dtype=dtype).numpy())

    def _sparse(self, node: SparseNode) -> torch.Tensor:
        """Takes no memory; it says only what is wanted."""
        record = self.records[cast("TensorNode", dict(node.parts)["values"]).index]
        layout: torch.layout = getattr(torch, node.layout)
        return torch.zeros(node.shape, dtype=TORCH_DTYPES[record.dtype], layout=layout)


def _dict_like(made: dict[Any, Any], old: Any, *, ordered: bool) -> dict[Any, Any]:
    """A checkpoint keeps dicts as such; whoever has a special kind gets that kind back."""
    if isinstance(old, Counter):
        return Counter(made)
    if isinstance(old, defaultdict):
        return defaultdict(cast("Any", old).default_factory, made)
    return OrderedDict(made) if ordered else made


def _at(old: Any, key: str | int) -> Any:
    if isinstance(old, Mapping):
        return cast("Mapping[Any, Any]", old).get(key)
    if isinstance(old, list | tuple) and isinstance(key, int):
        several = cast("Sequence[Any]", old)
        return several[key] if key < len(several) else None
    return None

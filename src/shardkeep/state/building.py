"""What state comes of a checkpoint where none is there to fill? Plain containers and tensors."""

# torch and NumPy leave from_numpy(), tolist() and the like untyped.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from shardkeep.errors import CorruptError
from shardkeep.manifest import (
    ArrayNode,
    DictNode,
    ListNode,
    Node,
    PerRankNode,
    SparseNode,
    TensorNode,
    TupleNode,
)


def build_state(
    node: Node, tensors: Callable[[int], torch.Tensor], per_rank: Callable[[str], Any]
) -> Any:
    """The state that a manifest's tree describes; `tensors` gives each by its number."""
    if isinstance(node, TensorNode):
        return tensors(node.index)
    if isinstance(node, ArrayNode):
        return tensors(node.index).numpy()
    if isinstance(node, DictNode):
        items = [(key, build_state(child, tensors, per_rank)) for key, child in node.items]
        return OrderedDict(items) if node.ordered else dict(items)
    if isinstance(node, ListNode | TupleNode):
        made = [build_state(child, tensors, per_rank) for child in node.items]
        return made if isinstance(node, ListNode) else tuple(made)
    if isinstance(node, PerRankNode):
        return per_rank(node.key)
    if isinstance(node, SparseNode):
        parts = {name: build_state(part, tensors, per_rank) for name, part in node.parts}
        return build_sparse(node, parts)
    return node.value


def build_sparse(node: SparseNode, parts: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """A sparse tensor of its parts; CorruptError if they do not make one."""
    try:
        return _sparse(node, parts)
    except (RuntimeError, TypeError, ValueError) as error:
        raise CorruptError(
            f"the parts of a {node.layout} tensor of shape {list(node.shape)} do not make one: "
            f"{str(error).splitlines()[0]:.300}"
        ) from None


def _sparse(node: SparseNode, parts: Mapping[str, torch.Tensor]) -> torch.Tensor:
    shape: Sequence[int] = node.shape
    if node.layout == "sparse_coo":
        return torch.sparse_coo_tensor(
            parts["indices"],
            parts["values"],
            shape,
            is_coalesced=node.coalesced,
            # Indices outside the shape would be used unchecked later.
            check_invariants=True,
        )
    plain, compressed, values = parts.values()
    layout: torch.layout = getattr(torch, node.layout)
    return torch.sparse_compressed_tensor(
        plain, compressed, values, shape, layout=layout, check_invariants=True
    )


def tensor_numbers(node: Node) -> list[int]:
    """The numbers of all tensors below a node."""
    if isinstance(node, TensorNode | ArrayNode):
        return [node.index]
    if isinstance(node, DictNode):
        return [number for _, child in node.items for number in tensor_numbers(child)]
    if isinstance(node, ListNode | TupleNode):
        return [number for child in node.items for number in tensor_numbers(child)]
    if isinstance(node, SparseNode):
        return [number for _, part in node.parts for number in tensor_numbers(part)]
    return []

"""How do the structures that several ranks bring become one?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shardkeep.errors import ConflictError, name_ranks
from shardkeep.manifest import (
    ArrayNode,
    DictNode,
    ListNode,
    Node,
    SparseNode,
    TensorNode,
    TupleNode,
    ValueNode,
)

Tree = tuple[Node, Sequence[int]]
"""A structure and the ranks that bring it."""


def relabel(node: Node, numbers: Sequence[int]) -> Node:
    """The node with tensor i renamed to `numbers[i]`."""
    if isinstance(node, TensorNode | ArrayNode):
        return type(node)(numbers[node.index])
    if isinstance(node, DictNode):
        return replace(node, items=tuple((key, relabel(one, numbers)) for key, one in node.items))
    if isinstance(node, ListNode | TupleNode):
        return replace(node, items=tuple(relabel(one, numbers) for one in node.items))
    if isinstance(node, SparseNode):
        return replace(node, parts=tuple((name, relabel(one, numbers)) for name, one in node.parts))
    return node


def merge_trees(trees: Sequence[Tree]) -> Node:
    """One structure: dicts are united, everything else must be the same on all that have it."""
    return _merge(trees, ())


def _merge(trees: Sequence[Tree], path: tuple[str | int, ...]) -> Node:
    first, first_ranks = trees[0]
    if all(node == first for node, _ in trees[1:]):
        return first
    if all(isinstance(node, DictNode) for node, _ in trees):
        return _merge_dicts(trees, path)
    if isinstance(first, ListNode | TupleNode):
        return _merge_sequences(first, trees, path)
    other, ranks = next((node, ranks) for node, ranks in trees[1:] if node != first)
    raise ConflictError(
        f"{_text(path)} is {_describe(first)} on {name_ranks(first_ranks)}, but {_describe(other)} "
        f"on {name_ranks(ranks)}; mark what is meant to differ with per_rank(value)"
    )


def _merge_dicts(trees: Sequence[Tree], path: tuple[str | int, ...]) -> Node:
    children: dict[tuple[type, str | int], list[Tree]] = {}
    for node, ranks in trees:
        if isinstance(node, DictNode):
            for key, child in node.items:
                children.setdefault((type(key), key), []).append((child, ranks))
    ordered = any(isinstance(node, DictNode) and node.ordered for node, _ in trees)
    items = tuple((key, _merge(found, (*path, key))) for (_, key), found in children.items())
    return DictNode(items, ordered=ordered)


def _merge_sequences(
    first: ListNode | TupleNode, trees: Sequence[Tree], path: tuple[str | int, ...]
) -> Node:
    columns: list[list[Tree]] = [[] for _ in first.items]
    for node, ranks in trees:
        if not isinstance(node, type(first)) or len(node.items) != len(first.items):
            raise ConflictError(
                f"{_text(path)} is {_describe(first)} on {name_ranks(trees[0][1])}, but "
                f"{_describe(node)} on {name_ranks(ranks)}; use a dict where ranks keep "
                "different parts"
            )
        for column, child in zip(columns, node.items, strict=True):
            column.append((child, ranks))
    items = tuple(_merge(column, (*path, at)) for at, column in enumerate(columns))
    return replace(first, items=items)


def _describe(node: Node) -> str:
    if isinstance(node, ValueNode):
        text = repr(node.data)
        return text if len(text) <= 60 else text[:57] + "..."
    if isinstance(node, ListNode | TupleNode):
        return f"a {type(node).__name__.removesuffix('Node').lower()} of {len(node.items)}"
    return f"a {type(node).__name__.removesuffix('Node').lower()}"


def _text(path: tuple[str | int, ...]) -> str:
    return repr(".".join(map(str, path)) or "the state")

"""Which part of a stored structure was asked for?"""

import fnmatch
from collections.abc import Sequence

from shardkeep.manifest import DictNode, ListNode, Node, TupleNode


def select(node: Node, keys: Sequence[str], path: tuple[str | int, ...] = ()) -> Node:
    """The structure with only those leaves whose dotted path matches one of the patterns.

    Lists and tuples keep their length only if all of it was asked for; else they become dicts
    by position, so that what is left keeps its number.
    """
    if isinstance(node, DictNode):
        found = [(key, select(child, keys, (*path, key))) for key, child in node.items]
        kept = tuple((key, child) for key, child in found if not _is_empty(child))
        return DictNode(kept, ordered=node.ordered)
    if isinstance(node, ListNode | TupleNode) and node.items:
        items = [select(child, keys, (*path, at)) for at, child in enumerate(node.items)]
        kept = tuple((at, child) for at, child in enumerate(items) if not _is_empty(child))
        return type(node)(tuple(items)) if len(kept) == len(items) else DictNode(kept)
    text = ".".join(map(str, path))
    asked = any(fnmatch.fnmatchcase(text, pattern) for pattern in keys)
    return node if asked else _NOTHING


_NOTHING = DictNode(())


def _is_empty(node: Node) -> bool:
    return isinstance(node, DictNode) and not node.items

"""Which keys has a nested state in DCP? Those of its planner, which joins paths by dots."""

from __future__ import annotations

from collections.abc import Iterator

from shardkeep.errors import ConflictError, UnsupportedError
from shardkeep.manifest import ArrayNode, DictNode, ListNode, Node, TensorNode
from shardkeep.translate.choosing import Path, dotted

Leaves = dict[str, tuple[Path, Node]]
"""What DCP keeps under each key: its path, and a tensor or a value."""


def flattened(tree: Node) -> Leaves:
    """The state as DCP's planner flattens it: dicts are opened, lists if there is a reason to."""
    if not isinstance(tree, DictNode):
        raise UnsupportedError("the state is no dict, which DCP needs; put it below a key")
    found: Leaves = {}
    for path, node in _walk(tree, ()):
        key = dotted(path)
        if key in found:
            raise ConflictError(
                f"two places of the state are both {key!r} in DCP, which joins keys by dots; "
                "rename one of them"
            )
        found[key] = path, node
    return found


def _walk(node: Node, path: Path) -> Iterator[tuple[Path, Node]]:
    if isinstance(node, DictNode):
        for key, child in node.items:
            yield from _walk(child, (*path, str(key)))
    elif isinstance(node, ListNode) and _is_opened(node):
        for index, child in enumerate(node.items):
            yield from _walk(child, (*path, index))
    else:
        yield path, node


def _is_opened(node: ListNode) -> bool:
    """Whether DCP's planner looks into a list: if it holds tensors or dicts."""
    return any(
        isinstance(child, TensorNode | ArrayNode | DictNode)
        or (isinstance(child, ListNode) and _is_opened(child))
        for child in node.items
    )

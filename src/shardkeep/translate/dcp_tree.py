"""Which nested state was it that DCP flattened?

DCP keeps for each key its path: keys of dicts, which it turns into text, and indices of lists.
Empty containers leave no trace, tuples and what is in them are values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from shardkeep.errors import CorruptError
from shardkeep.manifest import DictNode, ListNode, Node, ValueNode
from shardkeep.translate.dcp_metadata import Path

# A list lacks the places of its empty containers; a hostile one might lack any number.
_MAX_HOLES = 1024
_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)


@dataclass
class _Branch:
    """A dict or list in the making; its parts are all texts, or all indices."""

    parts: dict[str | int, _Branch | Node] = field(
        default_factory=dict[str | int, "_Branch | Node"]
    )


def build_tree(
    nodes: Mapping[str, Node], paths: Mapping[str, Path], *, where: str, has_values: bool
) -> Node:
    """The state's structure with each key's node at its place.

    Without values, a list that they stood in becomes a dict by position.
    """
    root = _Branch()
    # The paths are in the order of the state, the rest in that of the ranks' plans.
    for key in {**{key: None for key in paths if key in nodes}, **nodes}:
        _put(root, paths.get(key, (key,)), nodes[key], f"{where}: {key!r}")
    return _node(root, where, has_values)


def _put(root: _Branch, path: Path, node: Node, what: str) -> None:
    branch = root
    for part in path[:-1]:
        _require_alike(branch, part, what)
        below = branch.parts.setdefault(part, _Branch())
        if not isinstance(below, _Branch):
            raise CorruptError(f"{what} lies within something that is no dict or list")
        branch = below
    _require_alike(branch, path[-1], what)
    if path[-1] in branch.parts:
        raise CorruptError(f"{what} stands where something else stands")
    branch.parts[path[-1]] = node


def _require_alike(branch: _Branch, part: str | int, what: str) -> None:
    first = next(iter(branch.parts), part)
    if type(first) is not type(part):
        raise CorruptError(f"{what} lies in what is both a dict and a list")


def _node(found: _Branch | Node, where: str, has_values: bool) -> Node:
    if not isinstance(found, _Branch):
        return found
    made = {part: _node(one, where, has_values) for part, one in found.parts.items()}
    indices = [part for part in made if isinstance(part, int)]
    if not indices:
        return DictNode(tuple(_with_numbers(made).items()))
    count = max(indices) + 1
    if not has_values and count > len(made):
        return DictNode(tuple(sorted(made.items())))
    if count > len(made) + _MAX_HOLES:
        raise CorruptError(f"{where} has a list of {count} of which {len(made)} are there")
    # DCP itself puts None where it kept nothing.
    return ListNode(tuple(made.get(at, ValueNode(None)) for at in range(count)))


def _with_numbers(made: Mapping[str | int, Node]) -> Mapping[str | int, Node]:
    """The dict with what is an optimizer's `state` numbered again.

    torch's optimizers number their parameters, and DCP made texts of the numbers.
    """
    state = made.get("state")
    if "param_groups" not in made or not isinstance(state, DictNode):
        return made
    if not all(_NUMBER.fullmatch(str(key)) for key, _ in state.items):
        return made
    return {**made, "state": DictNode(tuple((int(key), node) for key, node in state.items))}

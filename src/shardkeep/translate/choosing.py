"""Which part of a stored state is translated, and under which names?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from shardkeep.errors import ConflictError, NotFoundError
from shardkeep.manifest import DictNode, ListNode, Node, PerRankNode, TupleNode
from shardkeep.state.selecting import select

Rename = Callable[[str], str | None]
"""The name that a dotted path gets; None leaves it out."""

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """A part of a state."""

    tree: Node
    skipped: tuple[str, ...]
    """Dotted paths of what was asked for and left out."""


def choose(
    tree: Node, *, keys: Sequence[str] | None = None, prefix: str = "", rename: Rename | None = None
) -> Choice:
    """The leaves that `keys`, glob patterns of dotted paths, ask for.

    `prefix` takes what lies below a name, without that name. `rename` makes one flat dict of the
    new names. Values of each rank's own have no place in other formats.
    """
    chosen = tree if keys is None else select(tree, keys)
    if prefix:
        chosen = _below(chosen, prefix)
    own = [dotted(path) for path, leaf in leaves(chosen) if isinstance(leaf, PerRankNode)]
    skipped = list(own)
    if rename is not None:
        chosen, dropped = _renamed(chosen, rename)
        skipped += dropped
    elif own:
        chosen = _without_own(chosen)
    if next(leaves(chosen), None) is None:
        asked = f"keys={list(keys)}" if keys is not None else f"prefix={prefix!r}"
        raise NotFoundError(
            f"nothing of the state is asked for by {asked}; patterns are of dotted paths, such as "
            "'model.*'"
        )
    return Choice(chosen, tuple(dict.fromkeys(skipped)))


def leaves(node: Node, path: Path = ()) -> Iterator[tuple[Path, Node]]:
    """Every leaf of a structure with its path."""
    if isinstance(node, DictNode):
        for key, child in node.items:
            yield from leaves(child, (*path, key))
    elif isinstance(node, ListNode | TupleNode):
        for index, child in enumerate(node.items):
            yield from leaves(child, (*path, index))
    else:
        yield path, node


def dotted(path: Path) -> str:
    """The parts joined by dots."""
    return ".".join(map(str, path))


def _below(tree: Node, prefix: str) -> Node:
    """The dict that the prefix names, or a flat one of all that starts with it."""
    found = _at(tree, "", prefix)
    if found is not None:
        return found
    named = {
        dotted(path).removeprefix(prefix): leaf
        for path, leaf in leaves(tree)
        if dotted(path).startswith(prefix)
    }
    return DictNode(tuple(named.items()))


def _at(node: Node, here: str, prefix: str) -> Node | None:
    if here == prefix:
        return node
    if not isinstance(node, DictNode):
        return None
    for key, child in node.items:
        below = f"{here}{key}."
        if prefix.startswith(below):
            found = _at(child, below, prefix)
            if found is not None:
                return found
    return None


def _renamed(tree: Node, rename: Rename) -> tuple[Node, list[str]]:
    named: dict[str | int, Node] = {}
    dropped: list[str] = []
    for path, leaf in leaves(tree):
        name = None if isinstance(leaf, PerRankNode) else rename(dotted(path))
        if name is None:
            dropped.append(dotted(path))
        elif name in named:
            raise ConflictError(f"{dotted(path)!r} and another would both be called {name!r}")
        else:
            named[name] = leaf
    return DictNode(tuple(named.items())), dropped


def _without_own(node: Node) -> Node:
    if isinstance(node, DictNode):
        kept = [(key, _without_own(c)) for key, c in node.items if not isinstance(c, PerRankNode)]
        return DictNode(tuple(kept), ordered=node.ordered)
    if isinstance(node, ListNode | TupleNode):
        kept = [_without_own(child) for child in node.items if not isinstance(child, PerRankNode)]
        return type(node)(tuple(kept))
    return node

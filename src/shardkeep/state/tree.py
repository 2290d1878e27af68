"""What is a container, what is a leaf, and how does a tree come back as it was?

Mappings, lists and tuples are containers; everything else is a leaf, also `torch.Size`.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import torch

from shardkeep.errors import InvalidError
from shardkeep.state.paths import Path, path_text

# Far beyond any state dict, and within Python's own limit for a caller that is itself nested.
MAX_DEPTH = 200

# Most leaves by far: found without asking which abstract classes they belong to.
COMMON_LEAVES = frozenset(
    (torch.Tensor, torch.nn.Parameter, torch.Size, str, bytes, bool, int, float, type(None))
)

Visit = Callable[[Path, Any], Any]


@dataclass(frozen=True)
class Container:
    """Everything about a container but its values: enough to build one like it.

    A subclass of list or tuple that is no namedtuple comes back as list or tuple, an
    OrderedDict with its instance attributes (a module's state dict has `_metadata`), a
    defaultdict with its factory, and any other mapping as a dict.

    >>> opened = open_container(OrderedDict(a=1, b=2))
    >>> opened.container.build(["x", "y"])
    OrderedDict([('a', 'x'), ('b', 'y')])
    """

    kind: type[Any]
    keys: tuple[Hashable, ...]
    factory: Callable[[], Any] | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def is_mapping(self) -> bool:
        return issubclass(self.kind, dict)

    def build(self, values: Sequence[Any]) -> Any:
        """A fresh container with these values, in the order of `keys`."""
        if not self.is_mapping:
            make: Callable[[Sequence[Any]], Any] = getattr(self.kind, "_make", self.kind)
            return make(values)
        items = zip(self.keys, values, strict=True)
        if self.kind is defaultdict:
            return defaultdict(self.factory, items)
        built: Any = self.kind(items)
        if self.attributes:
            built.__dict__.update(self.attributes)
        return built


@dataclass(frozen=True, slots=True)
class Opened:
    """A container and the values in it, in the order of its keys."""

    container: Container
    values: list[Any]


def open_container(x: Any) -> Opened | None:
    """The container and its values, or None for a leaf."""
    # A tensor of any kind is told quickly, too; an abstract class looks through a cache of types.
    if type(x) in COMMON_LEAVES or isinstance(x, torch.Tensor):
        return None
    if isinstance(x, Mapping):
        return _open_mapping(cast("Mapping[Any, Any]", x))
    if isinstance(x, list | tuple) and not isinstance(x, torch.Size):
        return _open_sequence(cast("Sequence[Any]", x))
    return None


def _open_sequence(x: Sequence[Any]) -> Opened:
    values = list(x)
    return Opened(Container(_sequence_kind(type(x)), tuple(range(len(values)))), values)


def _open_mapping(x: Mapping[Any, Any]) -> Opened:
    keys, values = tuple(x.keys()), list(x.values())
    if isinstance(x, OrderedDict):
        return Opened(Container(OrderedDict, keys, attributes=dict(vars(x))), values)
    if isinstance(x, defaultdict):
        factory = x.default_factory
        return Opened(Container(defaultdict, keys, factory=factory), values)
    return Opened(Container(dict, keys), values)


def _sequence_kind(kind: type[Any]) -> type[Any]:
    if hasattr(kind, "_fields") and hasattr(kind, "_make"):
        return kind
    return list if issubclass(kind, list) else tuple


class Node(NamedTuple):
    """One place of a tree: a container (then `opened` is set) or a leaf."""

    path: Path
    value: Any
    opened: Opened | None


def nodes(tree: Any, *, descend: Callable[[Any], bool] | None = None) -> Iterator[Node]:
    """Every place of the tree, each container before what is in it.

    A container below the root for which `descend` is false counts as a leaf.
    """
    root = Node((), tree, open_container(tree))
    yield root
    if root.opened:
        yield from _nodes_in(root.opened, root, (), descend)


def _nodes_in(
    opened: Opened, node: Node, above: tuple[int, ...], descend: Callable[[Any], bool] | None
) -> Iterator[Node]:
    above = _enter(node.value, node.path, above)
    for key, value in zip(opened.container.keys, opened.values, strict=True):
        inner = open_container(value)
        if inner and descend and not descend(value):
            inner = None
        child = Node((*node.path, key), value, inner)
        yield child
        if inner:
            yield from _nodes_in(inner, child, above, descend)


def leaves(tree: Any) -> list[tuple[Path, Any]]:
    """Every leaf with its path, in the tree's order."""
    opened = open_container(tree)
    if opened is None:
        return [((), tree)]
    found: list[tuple[Path, Any]] = []
    _gather(opened, tree, (), (), found)
    return found


def _gather(
    opened: Opened, tree: Any, path: Path, above: tuple[int, ...], found: list[tuple[Path, Any]]
) -> None:
    above = _enter(tree, path, above)
    for key, value in zip(opened.container.keys, opened.values, strict=True):
        # There may be many thousands: no call is made for these.
        if type(value) in COMMON_LEAVES or isinstance(value, torch.Tensor):
            inner = None
        else:
            inner = open_container(value)
        if inner is None:
            found.append(((*path, key), value))
        else:
            _gather(inner, value, (*path, key), above, found)


def map_tree(fn: Visit, tree: Any, path: Path = ()) -> Any:
    """A tree of fresh containers of the same types, with `fn(path, leaf)` for each leaf.

    `path` is where `tree` itself stands.
    """
    return _map(fn, tree, path, ())


def _map(fn: Visit, tree: Any, path: Path, above: tuple[int, ...]) -> Any:
    opened = open_container(tree)
    if opened is None:
        return fn(path, tree)
    above = _enter(tree, path, above)
    items = zip(opened.container.keys, opened.values, strict=True)
    return opened.container.build([_map(fn, value, (*path, key), above) for key, value in items])


def _enter(container: Any, path: Path, above: tuple[int, ...]) -> tuple[int, ...]:
    """The identities of the containers that are open from here on."""
    if id(container) in above:
        raise InvalidError(f"the tree contains itself: {path_text(path)} is one of its own parents")
    if len(above) >= MAX_DEPTH:
        raise InvalidError(f"the tree is nested more than {MAX_DEPTH} deep, at {path_text(path)}")
    return (*above, id(container))

"""How does a nested state dict become one flat dict, and come back exactly as it was?"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shardkeep.errors import InvalidError
from shardkeep.state.paths import Path, flat_keys, set_element
from shardkeep.state.tree import Container, nodes

_MOST_NAMED = 10


@dataclass(frozen=True, eq=False)
class FlatMapping(Mapping[str, Path]):
    """Flat key -> path, for each leaf in the tree's order; it remembers the containers too.

    Equal to another one of the same paths and containers, and to a plain dict of the same paths.

    >>> flat, mapping = flatten_state_dict({"model": {"w": 1}, "betas": (0.9, 0.99), "empty": []})
    >>> flat
    {'model.w': 1, 'betas.0': 0.9, 'betas.1': 0.99}
    >>> dict(mapping)
    {'model.w': ('model', 'w'), 'betas.0': ('betas', 0), 'betas.1': ('betas', 1)}
    >>> unflatten_state_dict(flat, mapping)
    {'model': {'w': 1}, 'betas': (0.9, 0.99), 'empty': []}
    """

    _path_of: dict[str, Path]
    _container_at: dict[Path, Container]

    def __getitem__(self, flat_key: str) -> Path:
        return self._path_of[flat_key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._path_of)

    def __len__(self) -> int:
        return len(self._path_of)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, FlatMapping) and self._container_at != other._container_at:
            return False
        return super().__eq__(other)

    def rebuild(self, flat: Mapping[str, Any]) -> Any:
        """The tree with its leaves from `flat`, which has exactly the keys of this mapping."""
        leaf_at = {path: flat[flat_key] for flat_key, path in self._path_of.items()}
        return self._build((), leaf_at)

    def _build(self, path: Path, leaf_at: Mapping[Path, Any]) -> Any:
        container = self._container_at.get(path)
        if container is None:
            return leaf_at[path]
        return container.build([self._build((*path, key), leaf_at) for key in container.keys])


def traverse_state_dict(
    state_dict: Any,
    visitor: Callable[[Path, Any], object],
    keep_traversing: Callable[[Any], bool] | None = None,
) -> None:
    """Call `visitor(path, leaf)` for every leaf, in the tree's order.

    Mappings, lists and tuples are opened, or are leaves themselves if `keep_traversing` is given
    and false for them; the root is always opened. An empty container has no leaf to visit.
    """
    for node in nodes(state_dict, descend=keep_traversing):
        if node.opened is None:
            visitor(node.path, node.value)


def flatten_state_dict(state_dict: Any) -> tuple[dict[str, Any], FlatMapping]:
    """The leaves by flat key, and the mapping that `unflatten_state_dict` needs to undo it.

    The flat key is the path joined by dots; where several paths of this tree would share it,
    their keys are quoted: `{"a.b": 1, "a": {"b": 2}}` gives `"a.b"` (with quotes) and `a.b`.
    """
    leaf_at: dict[Path, Any] = {}
    container_at: dict[Path, Container] = {}
    for node in nodes(state_dict):
        if node.opened is None:
            leaf_at[node.path] = node.value
        else:
            container_at[node.path] = node.opened.container
    text_of = flat_keys(leaf_at)
    flat = {text_of[path]: leaf for path, leaf in leaf_at.items()}
    return flat, FlatMapping({text: path for path, text in text_of.items()}, container_at)


def unflatten_state_dict(flat: Mapping[str, Any], mapping: Mapping[str, Path]) -> Any:
    """The nested state dict again, with its leaves taken from `flat`.

    With a plain mapping of flat key -> path (PyTorch's), an int in a path makes a list, and
    containers that were empty are not known.
    """
    _require_same_keys(flat, mapping)
    if isinstance(mapping, FlatMapping):
        return mapping.rebuild(flat)
    root: dict[Any, Any] = {}
    for flat_key, path in mapping.items():
        set_element(root, path, flat[flat_key])
    return root


def _require_same_keys(flat: Mapping[str, Any], mapping: Mapping[str, Path]) -> None:
    missing = [key for key in mapping if key not in flat]
    unknown = [key for key in flat if key not in mapping]
    if missing or unknown:
        problems = _name_keys("missing", missing), _name_keys("not in the mapping", unknown)
        raise InvalidError("the flat state dict does not fit: " + "; ".join(filter(None, problems)))


def _name_keys(what: str, keys: Collection[str]) -> str:
    return f"{what}: {name_some(keys)}" if keys else ""


def name_some(names: Iterable[object]) -> str:
    """The first few names, and how many more there are."""
    shown = [repr(name) for name in names]
    more = f" and {len(shown) - _MOST_NAMED} more" if len(shown) > _MOST_NAMED else ""
    return ", ".join(shown[:_MOST_NAMED]) + more

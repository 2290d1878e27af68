"""How are leaves taken out of a tree in place?"""

from collections.abc import Container, MutableMapping
from typing import Any, cast

from shardkeep.errors import InvalidError
from shardkeep.state.keys import wire_key
from shardkeep.state.paths import Path, get_element, path_text
from shardkeep.state.tree import leaves


def remove_leaves(tree: Any, *, keep: Container[str]) -> None:
    """Remove each leaf whose wire key is not in `keep` from the mapping that holds it."""
    for path in [path for path, _ in leaves(tree) if wire_key(path) not in keep]:
        _remove(tree, path)


def _remove(tree: Any, path: Path) -> None:
    holder: Any = get_element(tree, path[:-1]) if path[:-1] else tree
    if not isinstance(holder, MutableMapping):
        raise InvalidError(
            f"{path_text(path)} is not in the full state dict, and cannot be removed from a "
            f"{type(holder).__name__}; pass strict=False"
        )
    cast("MutableMapping[Any, Any]", holder).pop(path[-1])

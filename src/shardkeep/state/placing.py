"""How do new leaves get into a tree that is already there?

Dicts and lists are changed in place; a tuple, which cannot be, is replaced in what holds it.
"""

from collections.abc import Mapping, MutableMapping
from typing import Any, cast

from shardkeep.errors import InvalidError
from shardkeep.state.paths import Path
from shardkeep.state.tree import open_container


def place(tree: Any, news: Mapping[Path, Any]) -> None:
    """Put each value in its place of the tree."""
    if placed(tree, news) is not tree:
        raise InvalidError(
            f"a {type(tree).__name__} cannot be changed in place: load into a dict or a list"
        )


def placed(tree: Any, news: Mapping[Path, Any]) -> Any:
    """The tree itself if it could take the values in, else one like it that has them."""
    if not news:
        return tree
    if () in news:
        return news[()]
    opened = open_container(tree)
    if opened is None:
        raise InvalidError(f"a {type(tree).__name__} holds nothing that could be replaced")
    below: dict[Any, dict[Path, Any]] = {}
    for path, value in news.items():
        below.setdefault(path[0], {})[path[1:]] = value
    children = dict(zip(opened.container.keys, opened.values, strict=True))
    changed = {key: placed(children[key], rest) for key, rest in below.items()}
    if isinstance(tree, MutableMapping | list):
        target = cast("Any", tree)
        for key, value in changed.items():
            target[key] = value
        return target
    return opened.container.build([changed.get(key, old) for key, old in children.items()])

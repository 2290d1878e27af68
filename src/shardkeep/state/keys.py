"""Under which names do ranks speak of the leaves of their trees? The names must be the same on all.

A path is written as JSON, so that `("a", "b")`, `("a.b",)` and `("a", 0)` stay apart whatever
else a rank's tree holds.
"""

from collections.abc import Iterable

import msgspec

from shardkeep.errors import InvalidError
from shardkeep.state.paths import Path, path_text


def wire_key(path: Path) -> str:
    """The path as other ranks hear it.

    >>> wire_key(("model", "w", 0))
    '["model","w",0]'
    """
    for part in path:
        if isinstance(part, bool) or not isinstance(part, str | int):
            raise InvalidError(
                f"{path_text(path)}: key {part!r} is a {type(part).__name__}; "
                "between ranks, keys are str or int"
            )
    return msgspec.json.encode(path).decode()


def path_of(key: str) -> Path:
    """The path that was written."""
    return tuple(msgspec.json.decode(key))


def key_text(key: str) -> str:
    """The key as a person reads it."""
    return path_text(path_of(key))


def name_keys(keys: Iterable[str], limit: int = 5) -> str:
    """The first few keys, and how many more there are."""
    texts = [key_text(key) for key in keys]
    more = f" and {len(texts) - limit} more" if len(texts) > limit else ""
    return ", ".join(texts[:limit]) + more

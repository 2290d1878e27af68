"""Where in a tree does an element live, and what is that place called in text?"""

import json
import re
from collections.abc import Hashable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, TypeAlias, TypeGuard, cast

from shardkeep.errors import InvalidError

# The keys of mappings as they are, and the indices of lists and tuples, from the root down.
Path: TypeAlias = tuple[Hashable, ...]

_BARE = re.compile(r"[^\W\d][\w-]*")
_LONGEST_SHOWN = 200
_MISSING = object()


def dotted(path: Path) -> str:
    """The parts joined by dots: readable, but several paths may share it.

    >>> dotted(("model", "layers.0.w", 3))
    'model.layers.0.w.3'
    """
    try:
        return ".".join(path)  # type: ignore[arg-type]
    except TypeError:
        return ".".join([part if isinstance(part, str) else str(part) for part in path])


def all_dotted(paths: Sequence[Path]) -> list[str]:
    """As `dotted`, of many thousand."""
    try:
        return list(map(".".join, paths))  # type: ignore[arg-type]
    except TypeError:
        return [dotted(path) for path in paths]


def quoted(path: Path) -> str:
    """A text that no other path of a tree has: what could be mistaken is quoted.

    >>> quoted(("model", "layers.0.w", 3, "3", True))
    'model."layers.0.w".3."3".bool("True")'
    """
    return ".".join(_quoted_part(part) for part in path)


def _quoted_part(part: Hashable) -> str:
    if isinstance(part, str):
        return part if _BARE.fullmatch(part) else json.dumps(part)
    if isinstance(part, int) and not isinstance(part, bool):
        return str(int(part))
    return f"{type(part).__name__}({json.dumps(repr(part))})"


def path_text(path: Path) -> str:
    """How messages name a place: the dotted path, shortened when very long.

    >>> path_text(()), path_text(("optim", 0))
    ('the root', "'optim.0'")
    """
    if not path:
        return "the root"
    text = dotted(path[:_LONGEST_SHOWN])
    return repr(text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "...")


def flat_keys(paths: Iterable[Path]) -> dict[Path, str]:
    """A text for each path of one tree: dotted where that is unique among them, else quoted.

    The texts depend on the set of paths only, not on their order.

    >>> flat_keys([("a.b",), ("a", "b"), ("a", "c")])
    {('a.b',): '"a.b"', ('a', 'b'): 'a.b', ('a', 'c'): 'a.c'}
    """
    texts = {path: dotted(path) for path in paths}
    is_quoted: set[Path] = set()
    # A quoted text may equal another path's dotted one, which is then quoted as well.
    while clashing := _sharing_a_text(texts):
        _require_distinguishable(clashing & is_quoted, texts)
        is_quoted |= clashing
        texts.update((path, quoted(path)) for path in clashing)
    return texts


def _sharing_a_text(texts: Mapping[Path, str]) -> set[Path]:
    if len(set(texts.values())) == len(texts):
        return set()
    paths_of: dict[str, list[Path]] = {}
    for path, text in texts.items():
        paths_of.setdefault(text, []).append(path)
    return {path for paths in paths_of.values() if len(paths) > 1 for path in paths}


def _require_distinguishable(paths: Iterable[Path], texts: Mapping[Path, str]) -> None:
    """Raise for keys of a user's type whose reprs are alike. A dotted twin is not meant here."""
    seen: set[str] = set()
    for text in (texts[path] for path in paths):
        if text in seen:
            raise InvalidError(
                f"two keys of the tree are both written {text}: keys that are not str or int "
                "need distinct reprs"
            )
        seen.add(text)


def get_element(root: Any, path: Path, default: Any = None) -> Any:
    """The element at `path`, or `default` where there is none. A negative index is no element."""
    for part in path:
        root = _child(root, part)
        if root is _MISSING:
            return default
    return root


def _child(container: Any, part: Hashable) -> Any:
    if isinstance(container, Mapping):
        return cast("Mapping[Any, Any]", container).get(part, _MISSING)
    if isinstance(container, list | tuple) and _is_index(part):
        items = cast("Sequence[Any]", container)
        return items[part] if part < len(items) else _MISSING
    return _MISSING


def _is_index(part: object) -> TypeGuard[int]:
    return isinstance(part, int) and not isinstance(part, bool) and part >= 0


def set_element(root: Any, path: Path, value: Any) -> None:
    """Put `value` at `path` of the mapping or list `root`, in place.

    What is missing on the way is created: a list where the next part is an index, else a dict.
    A list that is too short is filled up with None, and a None in a list counts as missing.
    """
    if not path:
        raise InvalidError("an empty path names the root itself, which cannot be replaced in place")
    for depth, part in enumerate(path[:-1]):
        above = path[: depth + 1]
        child = _child(root, part)
        if child is _MISSING or (child is None and isinstance(root, list)):
            child = cast("Any", [] if _is_index(path[depth + 1]) else {})
            _put(root, above, child)
        root = child
    _put(root, path, value)


def _put(container: Any, path: Path, value: Any) -> None:
    part = path[-1]
    if isinstance(container, MutableMapping):
        cast("MutableMapping[Any, Any]", container)[part] = value
    elif isinstance(container, list) and _is_index(part):
        items = cast("list[Any]", container)
        items.extend([None] * (part + 1 - len(items)))
        items[part] = value
    else:
        raise InvalidError(_why_not(container, path))


def _why_not(container: Any, path: Path) -> str:
    name, part, where = type(container).__name__, path[-1], path_text(path[:-1])
    if isinstance(container, list):
        return f"{where} is a list, which has no element {part!r}: an index >= 0 is needed"
    if isinstance(container, tuple):
        return f"{where} is a {name}, which cannot be changed: replace it by a list, or as a whole"
    return f"{where} is a {name}, not a mapping or list: element {part!r} cannot be set in it"

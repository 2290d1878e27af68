"""Which JSON is written by others, and comes back the same from any reader?

User metadata and the bodies of registered values are not ours. They may hold what every reader
of JSON keeps exactly: no NaN, no integers beyond 2**53, no keys but strings, no broken text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sized
from typing import Any, cast

from shardkeep.errors import InvalidError
from shardkeep.manifest.limits import EXACT_INT, MAX_JSON_DEPTH

Json = None | bool | int | float | str | list[Any] | dict[str, Any]


def check_json(data: object, what: str) -> None:
    """Raise an InvalidError that names `what` unless `data` is JSON that any reader keeps."""
    level: list[object] = [data]
    # Level by level: however deep the data are, the stack is not.
    for _ in range(MAX_JSON_DEPTH):
        level = [child for parent in level for child in _children(parent, what)]
        if not level:
            return
    raise InvalidError(f"{what} is nested deeper than {MAX_JSON_DEPTH} levels")


def check_text(text: str, what: str) -> None:
    """Raise an InvalidError unless `text` can be written as UTF-8."""
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidError(f"{what} has text that is no valid Unicode: {text[:40]!a}") from None


def shown(data: object) -> str:
    """A short text for an error message, whatever the data: bounded in length, time and depth.

    >>> shown("x" * 100), shown([1, 2]), shown(-1), shown(10**5000)
    ("'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx'...", 'a list of 2', '-1', 'an int of 16610 bits')
    """
    if isinstance(data, str):
        return repr(data) if len(data) <= 40 else f"{data[:40]!r}..."
    if isinstance(data, int) and data.bit_length() > 64:
        return f"an int of {data.bit_length()} bits"
    if data is None or isinstance(data, bool | int | float):
        return str(data)
    size = f" of {len(data)}" if isinstance(data, Sized) else ""
    return f"a {type(data).__name__}{size}"


def _children(data: object, what: str) -> Iterable[object]:
    kind = type(data)
    if kind is dict:
        items = cast("dict[object, object]", data)
        for key in items:
            _check_key(key, what)
        return items.values()
    if kind is list:
        return cast("list[object]", data)
    _check_scalar(data, what)
    return ()


def _check_key(key: object, what: str) -> None:
    if type(key) is not str:
        raise InvalidError(f"{what} has the key {shown(key)}; keys of JSON objects are strings")
    check_text(key, what)


def _check_scalar(data: object, what: str) -> None:
    kind = type(data)
    if kind is str:
        check_text(cast("str", data), what)
    elif kind is int:
        if not -EXACT_INT < cast("int", data) < EXACT_INT:
            raise InvalidError(f"{what} has an integer beyond 2**53: write it as text")
    elif kind is float:
        if not math.isfinite(cast("float", data)):
            raise InvalidError(f"{what} has the number {data}, which JSON cannot hold")
    elif data is not None and kind is not bool:
        raise InvalidError(
            f"{what} has a {kind.__qualname__}, which is no JSON: use None, bool, int, float, "
            "str, list or dict"
        )

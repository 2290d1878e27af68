"""How are Python values written as JSON, so that they come back the same and run no code?

None, bool, str and small ints are JSON already. Everything else is an object with one key that
names its type. What is not listed here is refused; nothing is ever pickled.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from typing import Any

from shardkeep.errors import InvalidError

Json = None | bool | int | float | str | list[Any] | dict[str, Any]

# Beyond this, readers of JSON round ints to doubles.
_EXACT = 2**53


def encode_value(value: object) -> Json:
    """The value as JSON.

    >>> encode_value(2**60), encode_value(float("inf")), encode_value(b"ab")
    ({'int': '1152921504606846976'}, {'float': 'inf'}, {'bytes': 'YWI='})
    """
    if value is None or isinstance(value, bool | str):
        return value
    kind = type(value)
    if kind is int:
        return value if -_EXACT < value < _EXACT else {"int": str(value)}  # type: ignore[operator]
    if kind is float:
        return value if math.isfinite(value) else {"float": str(value)}  # type: ignore[arg-type]
    for name, (known, encode, _) in _TYPES.items():
        if kind is known:
            return {name: encode(value)}
    raise InvalidError(
        f"a {kind.__module__}.{kind.__qualname__} cannot be kept: use None, bool, int, float, "
        "complex, str, bytes or a tensor instead"
    )


def decode_value(data: Json) -> object:
    """The value that was written."""
    if not isinstance(data, dict):
        return data
    if len(data) != 1:
        raise InvalidError(f"a value has one type, got {sorted(data)}")
    ((name, body),) = data.items()
    if name == "int":
        return int(body)
    if name == "float":
        return float(body)
    if name not in _TYPES:
        raise InvalidError(f"unknown type of value {name!r}")
    return _TYPES[name][2](body)


def _complex(body: list[float | str]) -> complex:
    real, imaginary = body
    return complex(float(real), float(imaginary))


_TYPES: dict[str, tuple[type[Any], Callable[[Any], Any], Callable[[Any], object]]] = {
    "bytes": (bytes, lambda raw: base64.b64encode(raw).decode(), base64.b64decode),
    "complex": (complex, lambda c: [str(c.real), str(c.imag)], _complex),
}


def register_value(
    name: str, kind: type[Any], encode: Callable[[Any], Any], decode: Callable[[Any], object]
) -> None:
    """Teach a further type of value: `encode` gives JSON, `decode` takes it back."""
    if name in _TYPES and _TYPES[name][0] is not kind:
        raise InvalidError(f"values called {name!r} are of type {_TYPES[name][0].__qualname__}")
    _TYPES[name] = (kind, encode, decode)

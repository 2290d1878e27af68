"""How are Python values written as JSON, so that they come back the same and run no code?

None, bool, str, small ints and finite floats are JSON already. Everything else is an object with
one key that names its type. What is not listed here is refused; nothing is ever pickled.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Callable
from typing import Any, cast

from shardkeep.errors import CorruptError, InvalidError
from shardkeep.manifest.limits import EXACT_INT, MAX_INT_DIGITS
from shardkeep.manifest.plain_json import Json as Json, check_text, shown

_TOO_LONG = 10**MAX_INT_DIGITS

_DIGITS = re.compile(r"-?[1-9][0-9]*", re.ASCII)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?", re.ASCII)
_NOT_FINITE = ("nan", "inf", "-inf")


def encode_value(value: object) -> Json:
    """The value as JSON.

    >>> encode_value(2**60), encode_value(float("inf")), encode_value(b"ab")
    ({'int': '1152921504606846976'}, {'float': 'inf'}, {'bytes': 'YWI='})
    """
    kind = type(value)
    if value is None or kind is bool:
        return cast("bool | None", value)
    if kind in _ENCODERS:
        return _ENCODERS[kind](value)
    if kind.__module__ == "numpy":
        from shardkeep.manifest.numpy_values import encode_numpy

        return {"numpy": encode_numpy(value)}
    from shardkeep.manifest.registry import encode_registered

    return encode_registered(value)


def decode_value(data: Json) -> object:
    """The value that was written.

    Raises CorruptError for what `encode_value` never writes, InvalidError for a type that is not
    registered here.
    """
    if not isinstance(data, dict):
        return _plain(data)
    name, body = type_and_body(data)
    if name in _DECODERS:
        return _DECODERS[name](body)
    if name == "numpy":
        from shardkeep.manifest.numpy_values import decode_numpy

        return decode_numpy(body)
    from shardkeep.manifest.registry import decode_registered

    return decode_registered(name, body)


def check_value(data: Json) -> None:
    """Raise CorruptError unless `data` could be a value; types unknown here pass."""
    if not isinstance(data, dict):
        _plain(data)
        return
    from shardkeep.manifest.registry import check_body

    name, body = type_and_body(data)
    if name in _DECODERS:
        _DECODERS[name](body)
    else:
        check_body(name, body)


def type_and_body(data: dict[str, Any]) -> tuple[str, Any]:
    """The one key of a value that is no JSON by itself, and what stands under it."""
    if len(data) != 1:
        raise CorruptError(f"a value has one type, found {len(data)}")
    ((name, body),) = data.items()
    return name, body


def _encode_str(text: str) -> Json:
    check_text(text, "a value")
    return text


def _encode_int(number: int) -> Json:
    if -EXACT_INT < number < EXACT_INT:
        return number
    if not -_TOO_LONG < number < _TOO_LONG:
        raise InvalidError(
            f"an int of {number.bit_length()} bits cannot be kept: write it as bytes, "
            f"or as text; ints have at most {MAX_INT_DIGITS} digits"
        )
    return {"int": str(number)}


def _encode_float(number: float) -> Json:
    return number if math.isfinite(number) else {"float": str(number)}


def _plain(data: object) -> object:
    """A value that is JSON by itself."""
    kind = type(data)
    if kind is int and not -EXACT_INT < cast("int", data) < EXACT_INT:
        raise CorruptError("a plain integer is beyond 2**53")
    if kind is float and not math.isfinite(cast("float", data)):
        raise CorruptError(f"a plain number is {data}")
    if data is not None and kind not in (bool, int, float, str):
        raise CorruptError(f"a value is no {kind.__name__}")
    return data


def _decode_int(body: object) -> int:
    if not isinstance(body, str) or len(body) > MAX_INT_DIGITS + 1 or not _DIGITS.fullmatch(body):
        raise CorruptError(f"not the digits of an int: {shown(body)}")
    if len(body.lstrip("-")) > MAX_INT_DIGITS:
        raise CorruptError(f"an int of more than {MAX_INT_DIGITS} digits")
    number = int(body)
    if -EXACT_INT < number < EXACT_INT:
        raise CorruptError(f"the int {body} is small enough to be plain")
    return number


def _decode_float(body: object) -> float:
    if not isinstance(body, str) or body not in _NOT_FINITE:
        raise CorruptError(f"not one of nan, inf, -inf: {shown(body)}")
    return float(body)


def _decode_complex(body: object) -> complex:
    parts = cast("list[object]", body) if isinstance(body, list) else []
    if len(parts) != 2:
        raise CorruptError(f"a complex number has two parts, found {shown(parts)}")
    return complex(_part(parts[0]), _part(parts[1]))


def _part(text: object) -> float:
    if (
        isinstance(text, str)
        and len(text) <= 40
        and (text in _NOT_FINITE or _NUMBER.fullmatch(text))
    ):
        return float(text)
    raise CorruptError(f"not a part of a complex number: {shown(text)}")


def _decode_bytes(body: object) -> bytes:
    try:
        raw = base64.b64decode(body, validate=True) if isinstance(body, str) else b""
    except (binascii.Error, ValueError):
        raw = b""
    if not isinstance(body, str) or base64.b64encode(raw).decode() != body:
        raise CorruptError(f"not base64: {shown(body)}")
    return raw


_ENCODERS: dict[type, Callable[[Any], Json]] = {
    str: _encode_str,
    int: _encode_int,
    float: _encode_float,
    complex: lambda c: {"complex": [str(c.real), str(c.imag)]},
    bytes: lambda raw: {"bytes": base64.b64encode(raw).decode()},
}

_DECODERS: dict[str, Callable[[object], object]] = {
    "int": _decode_int,
    "float": _decode_float,
    "complex": _decode_complex,
    "bytes": _decode_bytes,
}

BUILT_IN_NAMES = frozenset(_DECODERS) | {"numpy"}
BUILT_IN_KINDS = frozenset(_ENCODERS) | {type(None), bool}

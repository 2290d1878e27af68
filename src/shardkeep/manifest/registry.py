"""Which further types of values are there, and who may name them?

A name with a dot (`mypackage.fraction`) is anybody's. Names without one belong to the format, so
that a later version can add a type without taking a name from someone.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shardkeep.errors import CorruptError, InvalidError
from shardkeep.manifest.plain_json import Json, check_json, shown
from shardkeep.manifest.values import BUILT_IN_KINDS, BUILT_IN_NAMES

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)+", re.ASCII)
_MAX_NAME = 200

TORCH_NAMES = frozenset({"dtype", "device", "size"})
"""Names of the format whose types are registered where torch is imported."""


@dataclass(frozen=True, slots=True)
class _Type:
    name: str
    kind: type[Any]
    encode: Callable[[Any], Any]
    decode: Callable[[Any], object]


_by_name: dict[str, _Type] = {}
_by_kind: dict[type[Any], _Type] = {}


def register_value(
    name: str, kind: type[Any], encode: Callable[[Any], Any], decode: Callable[[Any], object]
) -> None:
    """Teach a further type of value: `encode` gives JSON, `decode` takes it back.

    Values of exactly `kind` are meant, no subclasses. Registering a type again replaces its
    functions.
    """
    _check_new(name, kind)
    _by_name[name] = _by_kind[kind] = _Type(name, kind, encode, decode)


def encode_registered(value: object) -> Json:
    """The value of a registered type as JSON."""
    kind = type(value)
    known = _by_kind.get(kind)
    if known is None:
        raise InvalidError(
            f"a {kind.__module__}.{kind.__qualname__} cannot be kept: use None, bool, int, float, "
            "complex, str, bytes or a tensor instead, or teach the type with register_value_type"
        )
    try:
        body = known.encode(value)
    except Exception as error:
        raise InvalidError(f"a value of type {known.name!r} cannot be written: {error}") from error
    check_json(body, f"what a value of type {known.name!r} is written as")
    return {known.name: body}


def decode_registered(name: str, body: Any) -> object:
    """The value that a registered type wrote."""
    check_body(name, body)
    known = _by_name.get(name)
    if known is None:
        raise InvalidError(
            f"values of type {name!r} are not known here: import what registers it, "
            "or call register_value_type"
        )
    try:
        return known.decode(body)
    except Exception as error:
        raise CorruptError(f"a value of type {name!r} cannot be read: {error}") from error


def check_body(name: str, body: object) -> None:
    """Raise CorruptError unless a value may have this type name, and `body` is plain JSON."""
    if name not in TORCH_NAMES and name != "numpy" and not _is_name(name):
        raise CorruptError(f"unknown type of value {shown(name)}")
    try:
        check_json(body, f"a value of type {name!r}")
    except InvalidError as error:
        raise CorruptError(str(error)) from None


def _is_name(name: str) -> bool:
    return len(name) <= _MAX_NAME and _NAME.fullmatch(name) is not None


def _check_new(name: str, kind: type[Any]) -> None:
    if name in BUILT_IN_NAMES or kind in BUILT_IN_KINDS or kind.__module__ == "numpy":
        raise InvalidError(f"{name!r} for {kind.__qualname__}: values of built-in types are fixed")
    if name not in TORCH_NAMES and not _is_name(name):
        raise InvalidError(
            f"{shown(name)} cannot name a type of value: use identifiers with a dot between them, "
            "such as 'mypackage.fraction'"
        )
    if name in _by_name and _by_name[name].kind is not kind:
        raise InvalidError(f"values called {name!r} are of type {_by_name[name].kind.__qualname__}")
    if kind in _by_kind and _by_kind[kind].name != name:
        raise InvalidError(f"values of type {kind.__qualname__} are called {_by_kind[kind].name!r}")

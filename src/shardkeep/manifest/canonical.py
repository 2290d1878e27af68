"""How is JSON written in one way only, and read only if it was written so?

What was decoded is encoded again and must give the same bytes. That finds duplicate keys, white
space, fields out of order and odd spellings all at once, at the speed of the encoder. Numbers
with a fraction are the exception: their spelling is free, as printers of floats differ.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec

from shardkeep.errors import CorruptError, InvalidError

T = TypeVar("T")

_MAX_TEXT = 1000

_STRING_OR_FLOAT = re.compile(
    rb'"(?:[^"\\]++|\\.)*+"|-?[0-9]++(?=[.eE])(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?'
)


def encode_json(data: object) -> bytes:
    """Canonical JSON: no white space, fields in their order, text as UTF-8."""
    try:
        return msgspec.json.encode(data)
    except UnicodeEncodeError as error:
        raise InvalidError(f"text that is no valid Unicode cannot be written: {error}") from None


def decode_json(data: bytes | memoryview, decoder: msgspec.json.Decoder[T]) -> T:
    """What `data` says; raises CorruptError unless it is the canonical JSON of that."""
    try:
        found = decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptError(f"not as the format says: {error}") from None
    again = msgspec.json.encode(found)
    if again != data and _floats_aside(again) != _floats_aside(bytes(data)):
        raise CorruptError(
            "the JSON is not canonical: it has duplicate keys, white space, "
            "or fields or characters that are written in another way"
        )
    return found


def _floats_aside(data: bytes) -> bytes:
    return _STRING_OR_FLOAT.sub(_common_spelling, data)


def _common_spelling(match: re.Match[bytes]) -> bytes:
    token = match[0]
    return token if token[:1] == b'"' else repr(float(token)).encode()


def brief(error: Exception) -> str:
    """The error's text, cut off where hostile content makes it long."""
    text = str(error)
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}..."


def with_fresh_stack(act: Callable[[], T]) -> T:
    """The result of `act`; if the stack is too small, once more in a thread with its own.

    The deepest tree that the format allows needs most of Python's stack, and the caller may have
    used some of it.
    """
    try:
        return act()
    except RecursionError:
        pass
    try:
        with ThreadPoolExecutor(1, "shardkeep-deep") as pool:
            return pool.submit(act).result()
    except RecursionError:
        raise CorruptError("the JSON is nested too deeply") from None

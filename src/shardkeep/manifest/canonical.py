"""How is JSON written in one way only, and read only if it was written so?

What was decoded is encoded again and must give the same bytes. That finds duplicate keys, white
space, fields out of order and odd spellings all at once, at the speed of the encoder. Numbers
with a fraction are the exception: their spelling is free, as printers of floats differ.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import zip_longest
from typing import TypeVar

import msgspec

from shardkeep.errors import CorruptError, InvalidError
from shardkeep.manifest.limits import FREE_CONTAINERS, MIN_NBYTES_PER_CONTAINER

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
    if not _is_same_but_for_floats(msgspec.json.encode(found), data):
        raise CorruptError(
            "the JSON is not canonical: it has duplicate keys, white space, "
            "or fields or characters that are written in another way"
        )
    return found


def check_density(
    data: bytes,
    *,
    min_nbytes: int = MIN_NBYTES_PER_CONTAINER,
    free: int = FREE_CONTAINERS,
    nbytes_left_out: int = 0,
) -> None:
    """Raise InvalidError for JSON that would take far more memory than its length tells.

    Brackets within texts count as well: what is counted is never less than what is there. The
    length counts `nbytes_left_out` more than `data`, which have none.

    >>> check_density(b"[" + b"[]," * 200_000 + b"0]")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    shardkeep.errors.InvalidError: more lists and objects than 600003 bytes of JSON may have ...
    """
    nbytes = len(data) + nbytes_left_out
    count, limit = data.count(b"[") + data.count(b"{"), free + nbytes // min_nbytes
    if count > limit:
        raise InvalidError(
            f"more lists and objects than {nbytes} bytes of JSON may have here: {count}, "
            f"expected at most {limit}. What is the user's own can be written as text"
        )


def _is_same_but_for_floats(one: bytes, other: bytes | memoryview) -> bool:
    """Whether two JSON texts differ only in the spelling of numbers with a fraction."""
    if one == other:
        return True
    place = twin_place = 0
    texts = memoryview(one), memoryview(other)
    # One by one: all of them at once would take many times the memory of the text.
    tokens = zip_longest(_STRING_OR_FLOAT.finditer(one), _STRING_OR_FLOAT.finditer(other))
    for token, twin in tokens:
        if token is None or twin is None:
            return False
        between = texts[0][place : token.start()], texts[1][twin_place : twin.start()]
        if between[0] != between[1] or _common_spelling(token) != _common_spelling(twin):
            return False
        place, twin_place = token.end(), twin.end()
    return texts[0][place:] == texts[1][twin_place:]


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
    from concurrent.futures import ThreadPoolExecutor

    try:
        with ThreadPoolExecutor(1, "shardkeep-deep") as pool:
            return pool.submit(act).result()
    except RecursionError:
        raise CorruptError("the JSON is nested too deeply") from None

"""How is an input changed at random, so that some of what it meant is left?

Bytes are flipped, cut and doubled; and since most inputs are JSON or pickles, whole tokens of them
are exchanged for values that readers are known to stumble over.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*|true|false|null|[\[\]{}:,]')

VALUES: Sequence[bytes] = (
    b"0",
    b"-1",
    b"1e308",
    b"-0.0",
    b"9223372036854775807",
    b"9223372036854775808",
    b"-9223372036854775809",
    b"18446744073709551616",
    b"1" * 400,
    b"null",
    b"true",
    b"[]",
    b"{}",
    b'""',
    b'"\\u0000"',
    b'"\\ud800"',
    b'"../../x"',
    b'"__metadata__"',
    b'"\xff"',
    b"[" * 300 + b"]" * 300,
    b'{"a":' * 300 + b"0" + b"}" * 300,
    b'"%b"' % (b"x" * 5000),
)
_PIECES: Sequence[bytes] = (
    b"\x80\x02",
    b"\x80\x04\x95",
    b"cos\nsystem\n",
    b"ctorch\nSize\n",
    b"X\xff\xff\xff\x7f",
    b"\x8a\xff",
    b"]" * 50,
    b"\x85" * 50,
    b"(" * 50,
    b"h\x00",
    b"R",
    b"b",
    b"Q",
    b"PK\x01\x02",
    b"PK\x05\x06",
    b"\x00" * 16,
    b"\xff" * 8,
)


def mutated(seeds: Sequence[bytes], dice: random.Random) -> bytes:
    """One of the seeds after one to five changes."""
    data = dice.choice(seeds)
    for _ in range(dice.choice((1, 1, 1, 2, 3, 5))):
        data = dice.choice(_CHANGES)(data, seeds, dice)
    return data[: 1 << 17]


def _flip(data: bytes, seeds: Sequence[bytes], dice: random.Random) -> bytes:
    if not data:
        return b"\x01"
    at = dice.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << dice.randrange(8)]) + data[at + 1 :]


def _overwrite(data: bytes, seeds: Sequence[bytes], dice: random.Random) -> bytes:
    at, piece = dice.randint(0, len(data)), dice.choice(_PIECES)
    return data[:at] + piece + data[at + len(piece) :]


def _insert(data: bytes, seeds: Sequence[bytes], dice: random.Random) -> bytes:
    at = dice.randint(0, len(data))
    return data[:at] + dice.choice((*_PIECES, *VALUES)) + data[at:]


def _cut(data: bytes, seeds: Sequence[bytes], dice: random.Random) -> bytes:
    at = dice.randint(0, len(data))
    return data[:at] + data[at + dice.choice((1, 2, 8, 64, 1 << 20)) :]


def _double(data: bytes, seeds: Sequence[bytes], dice: random.Random) -> bytes:
    at = dice.randint(0, len(data))
    part = data[at : at + dice.choice((1, 8, 64, 512))]
    return data[:at] + part * dice.choice((2, 3, 100)) + data[at + len(part) :]


def _splice(data: bytes, seeds: Sequence[bytes], dice: random.Random) -> bytes:
    other = dice.choice(seeds)
    return data[: dice.randint(0, len(data))] + other[dice.randint(0, len(other)) :]


def _token(data: bytes, seeds: Sequence[bytes], dice: random.Random) -> bytes:
    """Another value in place of a token."""
    found = _random_token(data, dice)
    if found is None:
        return _flip(data, seeds, dice)
    return data[: found.start()] + dice.choice(VALUES) + data[found.end() :]


def _other_token(data: bytes, seeds: Sequence[bytes], dice: random.Random) -> bytes:
    """A token of the input in place of another."""
    one, other = _random_token(data, dice), _random_token(data, dice)
    if one is None or other is None:
        return _flip(data, seeds, dice)
    return data[: one.start()] + other[0] + data[one.end() :]


def _random_token(data: bytes, dice: random.Random) -> re.Match[bytes] | None:
    # The first behind a random place: to list them all would take longer than what is tested.
    return _TOKEN.search(data, dice.randint(0, len(data))) or _TOKEN.search(data)


Change = Callable[[bytes, Sequence[bytes], random.Random], bytes]
_CHANGES: Sequence[Change] = (
    _flip,
    _overwrite,
    _insert,
    _cut,
    _double,
    _splice,
    _token,
    _token,
    _token,
    _other_token,
    _other_token,
)

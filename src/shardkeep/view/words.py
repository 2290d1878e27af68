"""How are sizes, ages and shapes written for people?"""

from __future__ import annotations

import re
from collections.abc import Sequence

from shardkeep.errors import InvalidError


def size_text(nbytes: int) -> str:
    """A number of bytes in the largest unit that keeps it above 1.

    >>> size_text(0), size_text(1536), size_text(5 * 2**30)
    ('0 B', '1.5 KiB', '5.0 GiB')
    """
    if nbytes < 1024:
        return f"{nbytes} B"
    amount = float(nbytes)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        amount /= 1024
        if amount < 1024:
            return f"{amount:.1f} {unit}"
    return f"{amount / 1024:,.1f} PiB"


def age_text(seconds: float) -> str:
    """How long ago, in one unit.

    >>> age_text(42), age_text(3 * 3600 + 5), age_text(-3)
    ('42 s', '3 h', '0 s')
    """
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return f"{max(0, int(seconds))} s"


def number_text(number: float) -> str:
    """A measured number, short.

    >>> number_text(0.123456789), number_text(1e-9), number_text(float("nan")), number_text(12.0)
    ('0.12346', '1e-09', 'nan', '12')
    """
    return f"{number:.5g}"


def shape_text(shape: Sequence[int]) -> str:
    """A shape as it is spoken.

    >>> shape_text((1024, 64)), shape_text(())
    ('1024 x 64', 'scalar')
    """
    return " x ".join(map(str, shape)) if shape else "scalar"


def clean_text(text: str) -> str:
    """The text with what could steer a terminal written out.

    >>> clean_text("wq"), clean_text("a" + chr(27) + "[2J" + chr(10))
    ('wq', 'a\\\\x1b[2J\\\\n')
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def count_text(count: int, what: str) -> str:
    """A number of things.

    >>> count_text(1, "tensor"), count_text(1200, "rank")
    ('1 tensor', '1,200 ranks')
    """
    return f"{count:,} {what}{'' if count == 1 else 's'}"


_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def parse_size(text: str) -> int:
    """The number of bytes that somebody wrote.

    >>> parse_size("5GB"), parse_size("256 MiB"), parse_size("1.5gib"), parse_size("4096")
    (5000000000, 268435456, 1610612736, 4096)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)(b?)\s*", text, re.IGNORECASE)
    if found is None or (found[3] and not found[2]):
        raise InvalidError(f"a size is as in 5GB or 256MiB, got {text!r}")
    unit = (_BINARY_UNITS if found[3] else _UNITS)[found[2].upper()]
    nbytes = int(float(found[1]) * unit)
    if nbytes < 1:
        raise InvalidError(f"a size is at least one byte, got {text!r}")
    return nbytes

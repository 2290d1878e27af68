"""How are sizes, ages and shapes written for people?"""

from __future__ import annotations

from collections.abc import Sequence


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

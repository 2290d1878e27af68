"""How is a NumPy scalar written, so that its type comes back, too?

As the name of its dtype and the Python value that it stands for.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, cast

from shardkeep.errors import CorruptError, InvalidError
from shardkeep.manifest.plain_json import Json, shown
from shardkeep.manifest.values import decode_value, encode_value

_PLAIN_KINDS: dict[str, type] = {
    "bool": bool,
    **{f"{sign}int{bits}": int for sign in ("", "u") for bits in (8, 16, 32, 64)},
    **{f"float{bits}": float for bits in (16, 32, 64)},
    **{f"complex{bits}": complex for bits in (64, 128)},
    "str": str,
    "bytes": bytes,
}


def encode_numpy(value: Any) -> list[Json]:
    """Dtype and plain value of a NumPy scalar."""
    name = _name_of(value)
    if name not in _PLAIN_KINDS:
        kind = cast("type[object]", type(value))
        raise InvalidError(
            f"a numpy.{kind.__qualname__} cannot be kept as a value: kept are arrays, "
            f"and scalars of {', '.join(_PLAIN_KINDS)}"
        )
    return [name, encode_value(_plain(value))]


def decode_numpy(body: object) -> object:
    """The NumPy scalar that was written."""
    parts = cast("list[Any]", body) if isinstance(body, list) else []
    if len(parts) != 2 or not isinstance(parts[0], str) or parts[0] not in _PLAIN_KINDS:
        raise CorruptError(f"not a NumPy scalar: {shown(parts)}")
    name, data = cast("tuple[str, Json]", parts)
    if isinstance(data, dict) and "numpy" in data:
        raise CorruptError("a NumPy scalar within a NumPy scalar")
    plain = decode_value(data)
    if type(plain) is not _PLAIN_KINDS[name]:
        raise CorruptError(f"a NumPy {name} is no {type(plain).__name__}")
    return _scalar(name, plain)


def _name_of(value: Any) -> str:
    import numpy as np

    if not isinstance(value, np.generic):
        return ""
    if isinstance(value, np.str_ | np.bytes_):
        return "str" if isinstance(value, np.str_) else "bytes"
    return str(cast("Any", value).dtype.name)


def _plain(scalar: Any) -> object:
    """The Python value; of text and bytes with NULs at the end, which `item` drops."""
    if isinstance(scalar, str):
        return str.__add__(scalar, "")
    return bytes(scalar) if isinstance(scalar, bytes) else scalar.item()


@lru_cache
def _scalar_type(name: str) -> Any:
    import numpy as np

    return {"str": np.str_, "bytes": np.bytes_}.get(name) or np.dtype(name).type


def _scalar(name: str, plain: object) -> object:
    import numpy as np

    try:
        with np.errstate(all="ignore"):
            scalar = _scalar_type(name)(plain)
    except (OverflowError, ValueError):
        scalar = None
    # Written and read back it must be the same: a number may not fit the type.
    if scalar is None or encode_value(_plain(scalar)) != encode_value(plain):
        raise CorruptError(f"{shown(plain)} is no NumPy {name}")
    return scalar

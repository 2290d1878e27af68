"""Which leaves that are no tensors may be shared, and how are the others copied?"""

import copy
import io
from typing import Any

import numpy as np
import torch

from shardkeep.errors import InvalidError
from shardkeep.state.paths import Path, path_text

# Nobody can change these, so that two trees may hold the same one.
_IMMUTABLE = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    torch.dtype,
    torch.device,
    torch.Size,
    np.generic,
)


def is_immutable(x: object) -> bool:
    """Whether `x` is None or a plain value that cannot change."""
    return x is None or isinstance(x, _IMMUTABLE)


def check_value(path: Path, x: object) -> None:
    """Raise InvalidError unless `x` is a plain value: immutable, or a BytesIO."""
    if not is_immutable(x) and not isinstance(x, io.BytesIO):
        raise InvalidError(
            f"{path_text(path)} is a {type(x).__module__}.{type(x).__qualname__}, which is neither "
            "a tensor nor a plain value (None, bool, number, str, bytes, BytesIO, torch.dtype, "
            "torch.device, torch.Size): convert it, or pass type_check=False to have it deep-copied"
        )


def copied_value(path: Path, x: Any, memo: dict[int, Any] | None = None) -> Any:
    """`x` itself if it cannot change, else a deep copy. Within one `memo`, twins stay twins."""
    if is_immutable(x):
        return x
    try:
        return copy.deepcopy(x, memo)
    except Exception as error:
        raise InvalidError(
            f"{path_text(path)} is a {type(x).__qualname__}, which cannot be copied: {error}"
        ) from error

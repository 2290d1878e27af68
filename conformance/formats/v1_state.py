"""What does the frozen checkpoint of format version 1 hold? The whole state, in plain code.

Nothing here is to be changed: the checkpoint was made from it and stays as it is.
"""

from __future__ import annotations

from collections import OrderedDict
from datetime import date
from typing import Any

import numpy as np
import torch


class Day(date):
    """A type of our own: others may teach shardkeep what a date is."""


WORLD = 3

DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.uint16,
    torch.int16,
    torch.uint32,
    torch.int32,
    torch.uint64,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
    torch.complex64,
    torch.complex128,
)


def pattern(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """A tensor whose bytes count up, so that a misplaced one shows; a bool's are 0 and 1."""
    nbytes = int(np.prod(shape)) * dtype.itemsize
    top = 2 if dtype is torch.bool else 251
    raw = torch.tensor([(7 * at + 3) % top for at in range(nbytes)], dtype=torch.uint8)
    return raw.view(dtype).reshape(shape)


def by_rows() -> torch.Tensor:
    """Cut into rows of unequal number on the ranks."""
    return pattern(torch.float32, 7, 5)


def by_boxes() -> torch.Tensor:
    """Cut into boxes that follow no rule."""
    return pattern(torch.int16, 6, 4)


BOXES = (
    ((0, 0), (6, 1), 0),
    ((0, 1), (2, 2), 1),
    ((2, 1), (2, 2), 2),
    ((4, 1), (2, 2), 0),
    ((0, 3), (6, 1), 1),
)
"""First cell, sizes and rank of each box of `by_boxes`."""


def own_value(rank: int) -> dict[str, Any]:
    """What is different on each rank."""
    return {"rank": rank, "order": [rank, rank + 1], "seed": 2**60 + rank}


def plain_state() -> dict[Any, Any]:
    """All that is the same on every rank."""
    tied = pattern(torch.float32, 3, 2)
    dense = torch.tensor([[0.0, 2.0, 0.0], [3.0, 0.0, 4.0]])
    return {
        "dtypes": {str(dtype).removeprefix("torch."): pattern(dtype, 2, 3) for dtype in DTYPES},
        "shapes": {
            "scalar": pattern(torch.float64),
            "empty": torch.empty(0, 3),
            "five dims": pattern(torch.uint8, 2, 1, 3, 1, 2),
            "columns first": pattern(torch.int32, 3, 2).t(),
        },
        "tied": [tied, tied],
        "array": np.arange(6, dtype=np.int64).reshape(2, 3),
        "sparse": {
            "coo": dense.to_sparse().coalesce(),
            "csr": dense.to_sparse_csr(),
        },
        "odd keys": OrderedDict(
            [("a.b", pattern(torch.uint8, 1)), ("x@[0:1]", pattern(torch.uint8, 2)), ("ü", None)]
        ),
        7: (1, [], {}, ()),
        "values": {
            "ints": [0, -1, 2**53 - 1, 2**53, -(2**200)],
            "floats": [0.1, -0.0, float("inf"), float("-inf"), float("nan"), 5e-324],
            "others": [True, None, 1 + 2j, b"\x00\xff", '\u20ac \u0007 \\ "', torch.Size([2, 3])],
            "torch": [torch.bfloat16, torch.device("cpu")],
            "numpy": [np.float32(0.5), np.int8(-3), np.bool_(True)],
            "date": Day(2026, 1, 31),
        },
    }

"""When are two states the same, to the last bit and with the same types?"""

from typing import Any

import torch

from tests.distributed.tensors import assert_same


def assert_equal(actual: Any, expected: Any) -> None:
    """The same structure, types and values; keys of dicts in any order."""
    if isinstance(expected, torch.Tensor):
        assert_same(actual, expected)
        return
    assert type(actual) is type(expected), f"{actual!r} instead of {expected!r}"
    if isinstance(expected, dict):
        assert set(actual) == set(expected)
        for key in expected:
            assert_equal(actual[key], expected[key])
    elif isinstance(expected, list | tuple):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            assert_equal(one, other)
    else:
        assert actual == expected

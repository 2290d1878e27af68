"""In which order are the samples of an epoch seen, without a list of them in memory?

A Feistel network over the bits of a position is a permutation, whatever its round function;
positions that land beyond the end are sent through again until they land inside. The order is part
of what a checkpoint means: it must never change.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_ROUNDS = 6
Numbers = np.ndarray[Any, np.dtype[np.uint64]]


def shuffled(positions: Numbers, size: int, seed: int, epoch: int) -> Numbers:
    """The sample at each position of a random order of `range(size)`.

    >>> sorted(shuffled(np.arange(5, dtype=np.uint64), 5, seed=1, epoch=0).tolist())
    [0, 1, 2, 3, 4]
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    keys = _keys(seed, epoch)
    found = _once(positions, half, keys)
    outside = found >= size
    while outside.any():
        found[outside] = _once(found[outside], half, keys)
        outside = found >= size
    return found


def _keys(seed: int, epoch: int) -> list[np.uint64]:
    first = np.array([seed & (2**64 - 1), epoch & (2**64 - 1)], np.uint64)
    with np.errstate(over="ignore"):
        base = _mixed(_mixed(first[:1]) + first[1:])[0]
        return [_mixed(np.array([base + np.uint64(n)], np.uint64))[0] for n in range(_ROUNDS)]


def _once(positions: Numbers, half: int, keys: list[np.uint64]) -> Numbers:
    shift, mask = np.uint64(half), np.uint64(2**half - 1)
    left, right = positions >> shift, positions & mask
    for key in keys:
        left, right = right, left ^ (_mixed(right ^ key) & mask)
    return (left << shift) | right


def _mixed(numbers: Numbers) -> Numbers:
    """Every bit of the outcome depends on every bit of the number (splitmix64's finaliser)."""
    with np.errstate(over="ignore"):
        mixed = numbers + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return mixed ^ (mixed >> np.uint64(31))

"""Random fills: shards differ although all ranks share a seed, and come again with the seed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from shardkeep import sharded as sk
from shardkeep.boxes import Box
from shardkeep.testing.thread_ranks import ThreadRanks
from tests.sharded.making import chunks, listed, pieces

SPEC = chunks([0, 1, 2])
FILLS: dict[str, Callable[[object], Any]] = {
    "rand": lambda group: sk.rand(SPEC, 6, 5, process_group=group),
    "randn": lambda group: sk.randn(SPEC, 6, 5, process_group=group),
    "rand_like": lambda group: sk.rand_like(sk.zeros(SPEC, 6, 5, process_group=group)),
    "randn_like": lambda group: sk.randn_like(sk.zeros(SPEC, 6, 5, process_group=group)),
    "uniform_": lambda group: sk.zeros(SPEC, 6, 5, process_group=group).uniform_(1, 2),
    "normal_": lambda group: sk.zeros(SPEC, 6, 5, process_group=group).normal_(1, 2),
    "init": lambda group: nn.init.kaiming_uniform_(sk.zeros(SPEC, 6, 5, process_group=group)),
    "exponential_": lambda group: sk.zeros(SPEC, 6, 5, process_group=group).exponential_(),
    "bernoulli_": lambda group: sk.zeros(SPEC, 6, 40, process_group=group).bernoulli_(0.5),
    "random_": lambda group: sk.zeros(SPEC, 6, 5, process_group=group).random_(0, 1000),
}

_generator_is_mine = threading.Lock()


def seeded(seed: int, fill: Callable[[object], Any], group: object) -> Any:
    """As on a rank of its own process: threads would draw from one generator in turn."""
    with _generator_is_mine:
        torch.manual_seed(seed)
        return fill(group)


def shards(world: ThreadRanks, name: str, seed: int) -> list[torch.Tensor]:
    made = world.run(lambda _, group: seeded(seed, FILLS[name], group))
    return [piece for tensor in made for piece in pieces(tensor)]


@pytest.mark.parametrize("name", FILLS)
def test_shards_differ_though_all_ranks_share_a_seed(three: ThreadRanks, name: str):
    first, second, third = shards(three, name, seed=5)

    assert not torch.equal(first, second)
    assert not torch.equal(first, third)
    assert not torch.equal(second, third)


@pytest.mark.parametrize("name", FILLS)
def test_the_same_seed_gives_the_same_values_and_another_gives_others(
    three: ThreadRanks, name: str
):
    once, again, other = (shards(three, name, seed) for seed in (5, 5, 6))

    assert all(map(torch.equal, once, again))
    assert not any(map(torch.equal, once, other))


def test_a_ranks_generator_moves_on_alike_however_many_shards_it_has(three: ThreadRanks):
    """What ranks draw together afterwards, such as a shuffle, stays the same on all."""

    def act(rank, group):
        with _generator_is_mine:
            torch.manual_seed(7)
            sk.rand(chunks([2, 0, 2]), 9, process_group=group)
            return torch.rand(1).item()

    found = three.run(act)

    assert len(set(found)) == 1


def test_two_fills_after_another_differ():
    torch.manual_seed(0)
    one, other = sk.rand(chunks([0]), 20), sk.rand(chunks([0]), 20)

    assert not torch.equal(pieces(one)[0], pieces(other)[0])


def test_uniform_values_lie_between_0_and_1():
    (values,) = pieces(sk.rand(chunks([0]), 1000))

    assert 0 <= values.min() < 0.1
    assert 0.9 < values.max() < 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.complex64])
def test_other_dtypes_are_filled(dtype: torch.dtype):
    tensor = sk.randn(chunks([0, 0]), 40, dtype=dtype)

    assert tensor.dtype == dtype
    assert not torch.equal(*pieces(tensor))


def test_a_given_generator_is_used():
    tensor = sk.zeros(chunks([0]), 10)

    tensor.uniform_(generator=torch.Generator().manual_seed(3))

    expected = torch.zeros(10).uniform_(generator=torch.Generator().manual_seed(3))
    assert torch.equal(pieces(tensor)[0], expected)


def test_integers_have_no_uniform_values():
    with pytest.raises((RuntimeError, NotImplementedError), match="not implemented for 'Long'"):
        sk.rand(chunks([0]), 4, dtype=torch.int64)


@pytest.mark.parametrize("size", [(), (0, 3)])
def test_0_dim_and_empty_tensors_are_filled(size: tuple[int, ...]):
    tensor = sk.rand(listed([(0, Box.whole(size))]), size)

    assert tensor.shape == size
    assert pieces(tensor)[0].lt(1).all()

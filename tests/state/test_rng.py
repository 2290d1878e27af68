"""Random numbers go on where they stopped; ranks that are new get streams of their own."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

import shardkeep as sk
from shardkeep.state.live import OfRank, Stored

Drawn = tuple[Any, ...]


@pytest.fixture(autouse=True)
def _rng_of_other_tests():
    """Left as it was found."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(before[0])
    np.random.set_state(before[1])
    torch.set_rng_state(before[2])


def seed(number: int) -> None:
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


def draw() -> Drawn:
    """Of each generator several kinds, so that halves that are kept back count, too."""
    return (
        random.random(),
        random.gauss(0, 1),
        random.getrandbits(70),
        *np.random.rand(2).tolist(),
        float(np.random.randn()),
        int(np.random.randint(2**40)),
        *torch.rand(2).tolist(),
        *torch.randn(3).tolist(),
        torch.randperm(30).tolist(),
    )


@pytest.mark.parametrize("draws", [0, 1, 2, 700])
def test_every_generator_goes_on_where_it_stopped(tmp_path, draws):
    seed(1)
    for _ in range(draws):
        draw()
    state = {"rng": sk.rng_state()}
    sk.save(state, tmp_path / "c")
    expected = [draw(), draw()]

    seed(2)
    assert draw() != expected[0]
    sk.load(tmp_path / "c", {"rng": sk.RngState()})

    assert [draw(), draw()] == expected


def test_the_half_that_gauss_keeps_back_is_kept(tmp_path):
    seed(1)
    random.gauss(0, 1)
    np.random.randn()
    sk.save({"rng": sk.rng_state()}, tmp_path / "c")
    expected = random.gauss(0, 1), np.random.randn(), random.gauss(0, 1), np.random.randn()

    seed(2)
    sk.load(tmp_path / "c", {"rng": sk.rng_state()})

    found = random.gauss(0, 1), np.random.randn(), random.gauss(0, 1), np.random.randn()
    assert found == expected


def test_the_state_is_that_of_the_save_not_of_the_object(tmp_path):
    seed(1)
    state = {"rng": sk.rng_state()}
    draw()
    sk.save(state, tmp_path / "c")
    expected = draw()

    sk.load(tmp_path / "c", state)

    assert draw() == expected


def test_a_save_and_a_load_draw_nothing(tmp_path):
    seed(1)
    expected = draw()
    seed(1)
    sk.save({"w": torch.zeros(5), "rng": sk.rng_state()}, tmp_path / "c")
    sk.load(tmp_path / "c", {"w": torch.zeros(5)}, keys=["w"])

    assert draw() == expected


# Another number of ranks


def saved_by(world: int) -> list[dict[str, bytes]]:
    """What each of several ranks keeps, with seeds of their own."""
    found: list[dict[str, bytes]] = []
    for rank in range(world):
        seed(100 + rank)
        found.append(sk.RngState().kept().value)
    return found


def given_to(me: int, saved: list[dict[str, bytes]]) -> Drawn:
    """What rank `me` draws after it has loaded, as the loader would hand the state over."""
    seed(999)
    state = sk.RngState()
    wanted = state.wanted(Stored(None, (), len(saved), me))
    assert isinstance(wanted, OfRank)
    state.give(saved[wanted.rank], {()})
    return draw()


@pytest.mark.parametrize(("world", "loading"), [(1, 1), (4, 4), (4, 2), (1, 7), (2, 9), (3, 4)])
def test_ranks_that_saved_go_on_and_new_ones_have_streams_of_their_own(world, loading):
    saved = saved_by(world)
    drawn = [given_to(me, saved) for me in range(loading)]

    for rank in range(min(world, loading)):
        seed(100 + rank)
        assert drawn[rank] == draw()
    for values in zip(*drawn, strict=True):
        assert len({str(value) for value in values}) == loading
    assert drawn == [given_to(me, saved) for me in reversed(range(loading))][::-1]


def test_streams_of_new_ranks_depend_on_what_was_saved():
    saved = saved_by(2)
    seed(5)
    draw()
    other = [sk.RngState().kept().value] * 2

    for drawn, elsewhere in zip(given_to(3, saved), given_to(3, other), strict=True):
        assert drawn != elsewhere


def test_the_generators_of_new_ranks_are_frozen():
    """A run that is repeated on more ranks than saved must draw the same again."""
    drawn = given_to(2, saved_by(1))

    assert drawn[2] == 219715875100571981198
    assert drawn[6] == 502412159905
    assert drawn[-1][:5] == [19, 16, 8, 0, 13]

"""The order of an epoch is a permutation, another for each seed and epoch, and it never changes."""

import numpy as np
from hypothesis import given, strategies as st

from shardkeep.state.shuffle import shuffled

SEEDS = st.integers(-(2**63), 2**63 - 1)
EPOCHS = st.integers(0, 2**40)


def order(size: int, seed: int, epoch: int) -> list[int]:
    return shuffled(np.arange(size, dtype=np.uint64), size, seed, epoch).tolist()


@given(size=st.integers(1, 3000), seed=SEEDS, epoch=EPOCHS)
def test_every_sample_stands_at_one_position(size, seed, epoch):
    assert sorted(order(size, seed, epoch)) == list(range(size))


@given(
    size=st.integers(1, 2**62), seed=SEEDS, epoch=EPOCHS, picks=st.lists(st.integers(0), max_size=9)
)
def test_positions_may_be_asked_for_in_any_order(size, seed, epoch, picks):
    positions = np.array([pick % size for pick in picks], np.uint64)

    together = shuffled(positions, size, seed, epoch).tolist()

    alone = [shuffled(positions[n : n + 1], size, seed, epoch)[0] for n in range(len(picks))]
    assert together == alone
    assert all(0 <= sample < size for sample in together)
    assert len(set(together)) == len(set(positions.tolist()))


def test_the_positions_that_were_asked_for_are_not_changed():
    positions = np.arange(5, dtype=np.uint64)

    shuffled(positions, 5, 1, 1)

    assert positions.tolist() == [0, 1, 2, 3, 4]


@given(seed=SEEDS, epoch=EPOCHS)
def test_seeds_and_epochs_have_orders_of_their_own(seed, epoch):
    first = order(100, seed, epoch)

    assert first != list(range(100))
    assert first != order(100, seed, epoch + 1)
    assert first != order(100, seed + 1, epoch)
    assert first != order(100, epoch, seed) or seed == epoch


def test_samples_are_spread_evenly():
    """Each sample's position over many epochs: mean and neighbours as in a random order."""
    size, epochs = 101, 400
    orders = np.array([order(size, 7, epoch) for epoch in range(epochs)], float)
    middle, deviation = (size - 1) / 2, size / np.sqrt(12 * epochs)

    assert np.abs(orders.mean(axis=0) - middle).max() < 5 * deviation
    steps = np.abs(np.diff(orders, axis=1)).mean()
    assert abs(steps - size / 3) < 0.5


def test_the_order_is_frozen():
    """Checkpoints count positions in it: a change would make runs see samples twice."""
    assert order(16, 0, 0) == [0, 12, 2, 14, 10, 3, 4, 7, 6, 5, 8, 1, 15, 9, 13, 11]
    assert order(10, 12345, 3) == [0, 6, 8, 5, 9, 2, 4, 3, 1, 7]
    assert order(7, -1, 0) == [3, 2, 0, 6, 5, 4, 1]
    far = np.array([0, 1, 10**12 - 1], np.uint64)
    assert shuffled(far, 10**12, 42, 1).tolist() == [908995106823, 984355846112, 11527200797]

"""Which worlds do the tests of this folder share? Made once: connecting costs more than using."""

import pytest

from shardkeep.testing.thread_ranks import ThreadRanks


@pytest.fixture(scope="session")
def two() -> ThreadRanks:
    return ThreadRanks(2, timeout=10)


@pytest.fixture(scope="session")
def three() -> ThreadRanks:
    return ThreadRanks(3, timeout=10)


@pytest.fixture(scope="session")
def four() -> ThreadRanks:
    return ThreadRanks(4, timeout=10)

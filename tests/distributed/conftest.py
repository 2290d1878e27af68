"""Which real ranks do these tests run on? One pool of 4 and one of 3 for the whole session."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.distributed.pool import Pool

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Under `pytest -n --dist loadgroup`, one process has all these tests and the only pools."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.distributed)
            item.add_marker(pytest.mark.xdist_group("distributed"))


@pytest.fixture(scope="session")
def pool4() -> Iterator[Pool]:
    pool = Pool(4)
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def pool3() -> Iterator[Pool]:
    pool = Pool(3)
    yield pool
    pool.close()


@pytest.fixture
def fresh_pool4() -> Iterator[Pool]:
    """Four ranks for one test, which may change them for good."""
    pool = Pool(4)
    yield pool
    pool.close()

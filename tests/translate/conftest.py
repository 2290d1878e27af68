"""Ranks for the formats of others, started once."""

from collections.abc import Iterator

import pytest

from tests.distributed.pool import Pool
from tests.translate import cases_dcp


@pytest.fixture(scope="session")
def dcp_pool() -> Iterator[Pool]:
    """Four ranks whose groups are made."""
    pool = Pool(4)
    pool.run(cases_dcp.meet)
    yield pool
    pool.close()

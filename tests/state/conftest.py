"""What do the tests of this folder share?"""

from collections.abc import Iterator

import pytest

from tests.state.fake_world import fake_world


@pytest.fixture
def rank_one_of_four() -> Iterator[None]:
    """This process is rank 1 of 4, and the others never answer."""
    with fake_world():
        yield

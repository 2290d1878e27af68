"""Which tests run, and how many examples does a property try?

A property test sets no `max_examples` of its own, so that `make torture` can raise it for all.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

import shardkeep as sk
from torture.object_servers import S3Server, cannot_cheat, cannot_serve, rclone, seaweedfs

# No deadline: the first example of a test pays for imports and process start.
settings.register_profile("shardkeep", max_examples=100, deadline=None)
settings.register_profile("torture", max_examples=5000, deadline=None)
settings.load_profile("shardkeep")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the long campaigns to `make torture`."""
    if os.environ.get("SHARDKEEP_TORTURE"):
        return
    long = [item for item in items if item.get_closest_marker("torture")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., sk.Checkpointer]]:
    """Checkpointers of one run; what is under way ends with the test."""
    from shardkeep.transfer import saving

    yield lambda **options: sk.Checkpointer(tmp_path / "run", durable=False, **options)
    saving.background.wait()
    saving.background.unseen_errors()


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """A SeaweedFS that all tests of this process share; each takes a prefix of its own."""
    if reason := cannot_serve():
        pytest.skip(reason)
    with seaweedfs() as server:
        yield server


@pytest.fixture(scope="session")
def careless_s3() -> Iterator[S3Server]:
    """An S3 server that carries out every put, whatever its condition."""
    if reason := cannot_cheat():
        pytest.skip(reason)
    with rclone() as server:
        yield server

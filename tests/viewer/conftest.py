"""What tests of the viewer look at; made once for all of them."""

from pathlib import Path

import pytest

from tests.viewer.demo_run import make_run


@pytest.fixture(scope="session")
def demo(tmp_path_factory) -> Path:
    return make_run(tmp_path_factory.mktemp("viewer") / "demo")

"""What tests of the viewer look at, and with: made once for many of them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.viewer.browser import Window, opened, serving, started_browser
from tests.viewer.demo_run import make_run


@pytest.fixture(scope="session")
def demo(tmp_path_factory) -> Path:
    return make_run(tmp_path_factory.mktemp("viewer") / "demo")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with started_browser() as found:
        yield found


@pytest.fixture(scope="module")
def url(demo) -> Iterator[str]:
    with serving([demo]) as found:
        yield found


@pytest.fixture(scope="module")
def one_window(browser, url) -> Iterator[Window]:
    yield from opened(browser, url)


@pytest.fixture
def window(one_window) -> Iterator[Window]:
    """As if just opened."""
    one_window.begin_anew()
    yield one_window
    assert one_window.troubles == []

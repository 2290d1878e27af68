"""100,000 tensors are searched, opened and planned as a few are: in a moment."""

from collections.abc import Iterator

import pytest

from tests.viewer.browser import missing, opened, serving
from tests.viewer.large import COUNT, make_checkpoint, make_folder

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> Iterator[str]:
    """A server that shows a checkpoint of our own, and a folder of safetensors."""
    folder = tmp_path_factory.mktemp("large")
    with serving([make_checkpoint(folder / "own"), make_folder(folder / "hf")]) as url:
        yield url


@pytest.mark.parametrize(("at", "boxes"), [("0", 2), ("1", 1)])
def test_a_hundred_thousand_tensors_are_walked_through(browser, large, at, boxes):
    for window in opened(browser, large):
        page = window.open("checkpoint", at=at)
        page.wait_for_selector(f"text={COUNT:,} tensors >> nth=0")
        assert page.locator(".treemap .cell").count() > 4
        page.click(".treemap .cell >> nth=3")
        page.wait_for_selector(".crumbs [aria-current]:not(:text-is('all'))")
        window.find("layers.77.experts.9.x")
        page.wait_for_selector(".tile-box")
        assert "77.experts.9.x" in window.text()
        assert page.locator(".tile-box").count() == boxes
        page.wait_for_selector("canvas.heat")
        window.open("checkpoint", at=at, q="*.y.weight")
        assert "25,000 matches" in window.text()
        # Only rows in sight are elements.
        assert page.locator("[role=treeitem]").count() < 60
        page.focus("[role=tree]")
        page.keyboard.press("End")
        page.wait_for_selector("text=model.layers.99.experts.249.y.weight")
        window.open("what-if", at=at, mesh="dp=2,tp=2,pp=2")
        assert page.locator(".matrix tbody tr").count() == 8
        page.fill("input[name=pp]", "1")
        page.keyboard.press("Tab")
        page.wait_for_selector("dd:has-text('4 (dp 2')")

"""What a browser must not be brought to do: run a name as a script, or show what is not its own."""

from pathlib import Path

import pytest
import torch

import shardkeep as sk
from shardkeep.view.web.report_file import write_report
from tests.viewer.browser import missing, opened, serving

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

HOSTILE = [
    "<img src=x onerror=document.title='owned'>",
    "</script><script>document.title='owned'</script>",
    "javascript:alert(1)",
    "a\"onmouseover=\"document.title='owned'",
    "‮\x1b[2J\n\x00 ",
    "{{7*7}}${7*7}",
    "__proto__",
    "constructor",
]


def test_without_the_token_the_browser_sees_nothing(browser, url):
    context = browser.new_context()
    page = context.new_page()
    for address in (url.split("?")[0], url[:-3]):
        assert page.goto(address).status == 403
        assert "needs the token" in page.content()
    context.close()


@pytest.fixture(scope="module")
def hostile(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "<b>bold"
    state = {name: torch.full((4, 4), float(n)) for n, name in enumerate(HOSTILE)}
    sk.save(state, path, durable=False, metadata={"<i>": HOSTILE[0]})
    return path


def test_hostile_names_are_text(browser, hostile, tmp_path):
    other = tmp_path / "other"
    sk.save({name: torch.ones(4, 4) for name in HOSTILE}, other, durable=False)
    with serving([hostile, other]) as url:
        for window in opened(browser, url):
            page = window.open("checkpoint", at="0")
            assert HOSTILE[0] in window.text()
            for name in HOSTILE:
                window.open("tensor", at="0", key=name)
                assert "Who holds what" in window.text()
            window.open("compare", a="0", b="1", key=HOSTILE[0])
            window.open("what-if", at="0", part=HOSTILE[1])
            window.open("what-if", at="0", mesh="<img src=x onerror=alert(1)>=2")
            window.open("tensor", at="0", key="<svg onload=alert(1)>")
            assert "owned" not in page.title()
            assert page.locator("main img, main b, main i img, main script").count() == 0


@pytest.fixture(scope="module")
def report(demo, hostile, tmp_path_factory) -> Path:
    found = tmp_path_factory.mktemp("report") / "report.html"
    write_report([demo, hostile], found)
    return found


def test_a_report_shows_the_same_in_one_file_without_a_server(browser, report):
    for window in opened(browser, report.as_uri(), offline=True):
        page = window.page
        page.wait_for_selector("main table")
        assert "5 committed, 1 damaged, 1 half-written" in window.text()
        window.open("checkpoint", at="0/step-00000700")
        assert page.locator(".treemap .cell").count() > 4
        window.open("tensor", at="0/step-00000700", key="model.head.weight")
        page.wait_for_selector(".histogram")
        page.wait_for_selector("canvas.heat")
        window.open("compare")
        page.wait_for_selector(".histogram polyline")
        window.open("what-if", at="0/step-00000700", mesh="dp=4")
        assert page.locator(".matrix tbody tr").count() == 4
        window.open("tensor", at="1", key=HOSTILE[1])
        assert "owned" not in page.title()
        window.open("what-if", at="0/step-00000700", mesh="dp=3")
        assert "This report does not hold it" in window.text()


def test_a_reports_policy_lets_no_other_script_run(browser, report, tmp_path):
    text = report.read_text()
    forged = tmp_path / "forged.html"
    forged.write_text(text.replace("</body>", "<script>document.title='owned'</script></body>"))
    context = browser.new_context()
    page = context.new_page()
    page.goto(forged.as_uri())
    page.wait_for_selector("main table")
    assert "owned" not in page.title()
    context.close()

"""The viewer as people meet it: in a browser, from the first page to the last byte range."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import torch

import shardkeep as sk
from shardkeep.view.web.report_file import write_report
from tests.viewer.browser import missing, serving, started_browser
from tests.viewer.contrast import too_faint
from tests.viewer.demo_run import BAD, save_step, state_at
from tests.viewer.large import COUNT, make_large

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

AT, FIRST = "0/step-00000600", "0/step-00000200"
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


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with started_browser() as found:
        yield found


@pytest.fixture(scope="module")
def url(demo) -> Iterator[str]:
    with serving([demo]) as found:
        yield found


class Window:
    """A window of the browser; what goes wrong in it is not lost."""

    def __init__(self, context: Any, url: str) -> None:
        context.set_default_timeout(10_000)
        self.page = context.new_page()
        self.troubles: list[str] = []
        self.page.on("pageerror", lambda error: self.troubles.append(str(error)))
        self.page.on("console", lambda said: said.type == "error" and self._note(said))
        self.base = url.split("?")[0]
        self.page.goto(url)

    def _note(self, said: Any) -> None:
        # That a question was answered with an error is shown on the page.
        if "Failed to load resource" not in said.text:
            self.troubles.append(said.text)

    def open(self, view: str, **query: str) -> Any:
        asked = f"#/{view}?{urlencode(query)}"
        self.page.goto(f"{self.base}{asked}")
        self.page.wait_for_selector(f'main[data-shown="{asked}"]')
        self.page.wait_for_selector(".waiting", state="detached")
        return self.page

    def text(self) -> str:
        return self.page.inner_text("main")


@pytest.fixture
def window(browser, url) -> Iterator[Window]:
    yield from opened(browser, url)


def opened(browser: Any, url: str, **options: Any) -> Iterator[Window]:
    context = browser.new_context(viewport={"width": 1200, "height": 900}, **options)
    window = Window(context, url)
    yield window
    context.close()
    assert window.troubles == []


def test_a_run_shows_its_steps_and_leads_to_a_tensor(window):
    page = window.page
    page.wait_for_selector("main table")
    said = window.text()
    assert "5 committed, 1 damaged, 1 half-written" in said
    assert "is missing" in said
    assert "last 3, every 200, best 1 by loss (min)" in said
    assert page.locator(".chart canvas").count() == 3
    assert "token" not in page.url
    page.click("td a:text-is('600')")
    page.wait_for_selector("h1:text-is('Step 600')")
    page.keyboard.press("/")
    page.keyboard.type("layers.1.mlp.up.weight")
    page.wait_for_selector("text=3 matches")
    page.click(f".tree-name[title='{BAD}']")
    page.wait_for_selector(".tile-box")
    assert page.locator(".tile-box").count() == 4


def test_a_tensor_shows_who_holds_what_and_what_is_wrong_with_it(window):
    page = window.open("tensor", at=AT, key=BAD)
    page.hover(".tile-box >> nth=1")
    said = page.inner_text(".card output.said >> nth=0")
    assert re.match(r"\[64:128, 0:64\]: rank 2, \w+-00002-0\.safetensors, bytes [\d,]+ to", said)
    assert page.inner_text(".tile.bad >> nth=0").split() == ["NaN", "30"]
    page.click("text=[40, 10]")
    page.wait_for_selector("button:text-is('Whole slice')")
    page.wait_for_selector("canvas.heat")
    page.hover("canvas.heat", position={"x": 2, "y": 2})
    assert page.inner_text(".heat-holder output").startswith("[24, 0] = ")
    assert "rows=24%3A56" in page.url


def test_a_slice_that_makes_no_sense_is_told_with_a_way_out(window):
    page = window.open("tensor", at=AT, key=BAD, rows="9:3")
    assert "a range is as in" in window.text()
    page.click("text=Show the whole slice")
    page.wait_for_selector("canvas.heat")


def test_two_steps_are_compared(window):
    page = window.open("compare", a=FIRST, b=AT)
    said = window.text()
    assert "23 tensors" in said
    assert "46 tensors" in said
    page.wait_for_selector(".histogram polyline")
    page.wait_for_selector(".chart canvas")
    page.focus("[role=listbox]")
    page.keyboard.press("ArrowDown")
    page.wait_for_selector(".card-extra code:not(:text-is('" + BAD + "'))")
    assert "key=" in page.url


def test_what_if_shows_who_reads_which_bytes(window):
    page = window.open("what-if", at=AT, mesh="dp=2")
    assert page.locator(".matrix tbody tr").count() == 2
    page.fill("input[name=tp]", "2")
    page.keyboard.press("Tab")
    page.wait_for_selector("dd:has-text('4 (dp 2')")
    assert page.locator(".matrix tbody tr").count() == 4
    page.click(".matrix tbody tr >> nth=3 >> button")
    page.wait_for_selector("h2:text-is('What rank 3 reads')")
    assert "mesh=dp%3D2%2Ctp%3D2" in page.url
    assert page.locator(".ranges i").count() >= 1
    page.fill("input[name=pp]", "4")
    page.keyboard.press("Tab")
    page.wait_for_selector("dd:has-text('16 (dp 2')")


def test_a_rule_that_makes_no_sense_is_told(window):
    window.open("what-if", at=AT, mesh="ep=2")
    assert "what does the axis 'ep' do?" in window.text()


def test_the_slow_rank_is_seen_at_once(window):
    page = window.open("checkpoint", at=AT)
    assert "Slow: rank 2." in window.text()
    assert page.locator(".rank-row.slow").count() == 1
    assert "slow to stage" in page.get_attribute(".rank-row.slow", "aria-label")


def test_a_run_that_saves_is_seen_live(browser, tmp_path):
    run = tmp_path / "live"
    run.mkdir()
    with serving([run]) as url:
        for window in opened(browser, url):
            page = window.page
            page.wait_for_selector("text=No checkpoints yet")
            save_step(run, 1, state_at(1, 2, layers=1, width=8), 2, loss=2.0)
            page.wait_for_selector("td a:text-is('1')", timeout=20_000)
            with sk.Checkpointer(run, durable=False) as kept:
                kept.save_async(2, {"w": torch.ones(8)}, metrics={"loss": 1.0})
            page.wait_for_selector("td a:text-is('2')", timeout=20_000)
            assert page.locator("main tbody tr").count() == 2


def test_links_show_what_their_sender_saw(window):
    page = window.open("checkpoint", at=AT, module="model.layers", q="layers.3")
    assert page.input_value("input[type=search]") == "layers.3"
    assert page.inner_text(".crumbs [aria-current]") == "layers"
    page.click(".treemap .cell >> nth=1")
    page.wait_for_timeout(100)
    assert "at=0%2Fstep-00000600" in page.url


def test_the_tree_is_walked_with_the_keyboard(window):
    page = window.open("checkpoint", at=AT)
    page.focus("[role=tree]")
    page.keyboard.press("End")
    active = page.get_attribute("[role=tree]", "aria-activedescendant")
    assert page.inner_text(f"#{active} .tree-name").strip().endswith("state")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowLeft")
    assert page.get_attribute("#tree-0", "aria-expanded") == "false"
    page.keyboard.press("ArrowRight")
    for _ in range(2):
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.keyboard.press("PageDown")
    assert page.get_attribute("[role=tree]", "aria-activedescendant") != "tree-0"


def test_everything_is_reached_with_tab_and_the_focus_is_seen(window):
    page = window.open("what-if", at=AT, mesh="dp=2")
    page.evaluate("() => document.activeElement.blur()")
    reached = []
    for _ in range(24):
        page.keyboard.press("Tab")
        found = page.evaluate(
            """() => {
                const at = document.activeElement;
                if (!at || at === document.body) return null;
                const style = getComputedStyle(at);
                return [at.tagName, at.textContent || at.name, style.outlineStyle];
            }"""
        )
        if found:
            reached.append(found)
    names = [text for _, text, _ in reached]
    for wanted in ("Skip to the content", "Run", "What if", "dp", "tp", "pp", "0", "1"):
        assert wanted in names
    assert {outline for tag, _, outline in reached if tag != "G"} == {"solid"}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_labels_contrast_and_width(browser, url, theme):
    for window in opened(browser, url, color_scheme=theme):
        for view in ("run", "checkpoint", "tensor", "compare", "what-if"):
            page = window.open(view, at=AT, **({"key": BAD} if view == "tensor" else {}))
            page.wait_for_timeout(50)
            assert too_faint(page) == []
            assert unnamed(page) == []
            assert page.locator("h1").count() == 1
            page.set_viewport_size({"width": 360, "height": 740})
            # What was drawn for the wide window is drawn anew at the next frame.
            page.wait_for_function("() => document.documentElement.scrollWidth <= innerWidth")
            page.set_viewport_size({"width": 1200, "height": 900})


def unnamed(page: Any) -> list[str]:
    """Controls and pictures without a name for those who do not see them."""
    return page.evaluate(
        """() => [...document.querySelectorAll(
            'button, a, select, input, canvas, svg, [role=img], [role=tree], [role=listbox]')]
        .filter((one) => !one.closest('[aria-hidden=true], [role=img] *'))
        .filter((one) => !(one.getAttribute('aria-label') || one.textContent.trim()
            || one.labels?.length))
        .map((one) => one.outerHTML.slice(0, 120))"""
    )


def test_the_theme_can_be_chosen_and_stays(window):
    page = window.page
    page.wait_for_selector("main h1")
    before = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    after = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert before != after
    page.reload()
    page.wait_for_selector("main h1")
    assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") == after


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


def test_a_hundred_thousand_tensors_stay_within_a_moment(browser, tmp_path):
    with serving([make_large(tmp_path / "large")]) as url:
        for window in opened(browser, url):
            page = window.page
            page.wait_for_selector(f"text={COUNT:,} tensors >> nth=0", timeout=60_000)
            page.keyboard.press("/")
            page.keyboard.type("layers.77.experts.9.x")
            page.wait_for_selector("text=1 match")
            page.keyboard.press("Enter")
            page.wait_for_selector(".tile-box")
            assert "77.experts.9.x" in window.text()
            window.open("checkpoint", at="0", q="*.y.weight")
            assert "25,000 matches" in window.text()
            # Only rows in sight are elements.
            assert page.locator("[role=treeitem]").count() < 60
            page.focus("[role=tree]")
            page.keyboard.press("End")
            page.wait_for_selector("text=model.layers.99.experts.249.y.weight")


def test_a_server_that_has_gone_is_told(browser, demo):
    with serving([demo]) as url:
        context = browser.new_context()
        page = context.new_page()
        page.goto(url)
        page.wait_for_selector("main table")
    page.click("nav.tabs a >> nth=3")
    page.wait_for_selector("text=Is `shardkeep serve` still running")
    context.close()


def test_places_that_are_not_there_are_told(window):
    window.open("checkpoint", at="0/step-00000999")
    assert "It is not there" in window.text()
    window.open("tensor", at=AT, key="no.such.tensor")
    assert "the checkpoint has no tensor 'no.such.tensor'" in window.text()
    window.open("tensor", at="0/step-00000500", key="model.head.weight")
    assert "Who holds what" in window.text() or "It is" in window.text()

"""The viewer as people meet it: in a browser, from the first page to the last byte range."""

import re

import pytest

from tests.viewer.browser import missing, serving
from tests.viewer.demo_run import BAD

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

AT, FIRST = "0/step-00000600", "0/step-00000200"


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


def test_links_show_what_their_sender_saw(window):
    page = window.open("checkpoint", at=AT, module="model.layers", q="layers.3")
    assert page.input_value("input[type=search]") == "layers.3"
    assert page.inner_text(".crumbs [aria-current]") == "layers"
    page.click(".treemap .cell >> nth=1")
    page.wait_for_url(lambda url: "module=model.layers" not in url or "module=model.layers." in url)
    assert "at=0%2Fstep-00000600" in page.url


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

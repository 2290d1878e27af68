"""Everybody can use it: by keyboard alone, heard instead of seen, in both themes, on a phone."""

import pytest

from tests.viewer.access import flaws, unreached
from tests.viewer.browser import missing, opened
from tests.viewer.contrast import too_faint
from tests.viewer.cut_text import cut_off
from tests.viewer.demo_run import BAD

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

AT = "0/step-00000600"
VIEWS = {
    "run": {},
    "checkpoint": {"at": AT},
    "tensor": {"at": AT, "key": BAD},
    "compare": {"a": "0/step-00000200", "b": AT},
    "what-if": {"at": AT, "mesh": "dp=2"},
}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_view_is_readable_named_and_fits_a_phone(browser, url, theme):
    for window in opened(browser, url, color_scheme=theme):
        for view, query in VIEWS.items():
            page = window.open(view, **query)
            assert page.get_attribute("html", "data-theme") == theme
            assert too_faint(page) == []
            assert flaws(page) == []
            assert cut_off(page) == []
            page.set_viewport_size({"width": 360, "height": 740})
            # What was drawn for the wide window is drawn anew at the next frame.
            page.wait_for_function("() => document.documentElement.scrollWidth <= innerWidth")
            assert cut_off(page) == []
            page.set_viewport_size({"width": 1200, "height": 900})


@pytest.mark.parametrize("view", VIEWS)
def test_tab_reaches_all_that_can_be_used_and_the_focus_is_seen(window, view):
    page = window.open(view, **VIEWS[view])
    assert unreached(page) == ([], [])


def test_a_page_with_flaws_would_be_told(window):
    page = window.open("run")
    page.evaluate(
        """() => {
            const main = document.querySelector('main');
            const add = (tag, text, more = {}) => {
                const made = Object.assign(document.createElement(tag), more);
                made.textContent = text;
                main.append(made);
                return made;
            };
            add('p', 'hardly to be seen').style.color = 'rgb(200, 200, 200)';
            add('p', 'shines through').style.opacity = 0.3;
            add('button', '', { id: 'main' });
            add('h4', 'too deep');
            add('span', 'for mice only', { tabIndex: 0 }).style.outline = 'none';
            add('a', 'no way here').setAttribute('role', 'button');
            add('p', 'too_long_for_its_place').style = 'width: 40px; overflow: clip';
        }"""
    )
    assert {text for text, _ in too_faint(page)} == {"hardly to be seen", "shines through"}
    assert [one for one in cut_off(page) if "too_long_for_its_place" in one]
    said = " ".join(flaws(page))
    assert "no name: <button" in said
    assert "id twice: main" in said
    assert "heading skips a level: <h4" in said
    missed, unseen = unreached(page)
    assert [one for one in missed if "no way here" in one]
    assert [one for one in unseen if "for mice only" in one]


def test_what_can_be_used_is_reached_in_the_order_of_the_page(window):
    page = window.open("what-if", at=AT, mesh="dp=2")
    page.evaluate("() => document.activeElement.blur()")
    names = []
    for _ in range(20):
        page.keyboard.press("Tab")
        names.append(
            page.evaluate("() => document.activeElement.name || document.activeElement.textContent")
        )
    wanted = ["Skip to the content", "Run", "What if", "dp", "tp", "pp", "0", "1"]
    places = [names.index(one) for one in wanted]
    assert places == sorted(places)
    assert names[0] == "Skip to the content"


def test_the_way_past_the_bar_leads_to_the_content(window):
    page = window.open("what-if", at=AT, mesh="dp=2")
    page.evaluate("() => document.activeElement.blur()")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("() => document.activeElement.id") == "main"


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

"""How pages become a site, piece by piece; the whole of it is built in `test_site.py`."""

import re
from pathlib import Path

import pytest
import yaml

import shardkeep
from docs.hooks.docstrings import fenced
from docs.hooks.keywords import Place, index_page, keywords
from docs.hooks.links import ELSEWHERE, relinked, with_references
from docs.hooks.reference import shown_on
from docs.hooks.sections import sections_of, with_hidden_marks
from docs.hooks.site import INDEX, nav_pages

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

PAGE = """\
# Boxes

What a `Box` is.

<!-- keywords: half-open, rectangle -->

## Ways to make one

| | |
|---|---|
| `Box.whole(shape)`, `sized=` | other ways |

```python
# Not a heading
Box()
```

## Ways to make one

Again.
"""


def test_sections_have_the_anchors_of_the_site_and_their_marks():
    sections = sections_of("boxes.md", PAGE)
    assert [one.link for one in sections] == [
        "boxes.md",
        "boxes.md#ways-to-make-one",
        "boxes.md#ways-to-make-one_1",
    ]
    assert [one.label for one in sections][:2] == ["Boxes", "Boxes: Ways to make one"]
    assert sections[0].marks == ("half-open", "rectangle")
    assert "Not a heading" in sections[1].code
    assert "\n<span hidden>half-open, rectangle</span>\n" in with_hidden_marks(PAGE)


def test_the_index_has_names_members_what_tables_define_and_concepts():
    names, members = {"Box": "api.md#Box"}, {"Box": {"shape": "api.md#Box.shape"}}
    found = {
        one.text: one.places for one in keywords(sections_of("boxes.md", PAGE), names, members)
    }
    ways = Place("Boxes: Ways to make one", "boxes.md#ways-to-make-one")
    assert found["Box"][0] == Place("reference", "api.md#Box")
    assert set(found["Box"][1:]) == {Place("Boxes", "boxes.md"), ways}
    assert found["shape"] == (Place("of Box", "api.md#Box.shape"),)
    assert found["sized"] == found["Box.whole"] == (ways,)
    assert found["rectangle"] == (Place("Boxes", "boxes.md"),)


def test_a_name_that_only_code_shows_has_the_page_of_that_code():
    sections = sections_of("a.md", "# A\n\n```python\nsk.lost()\n```\n")
    (found,) = keywords(sections, {"lost": "api.md#lost"}, {})
    assert found.places[1] == Place("A", "a.md")
    assert "- `lost`: [reference](api.md#lost), [A](a.md)" in index_page([found])


@pytest.mark.parametrize(
    ("page", "written", "in_the_site"),
    [
        ("reliability.md", "[a](../conformance/attacks/README.md)", "[a](attacks.md)"),
        ("security.md", "[a](conformance/attacks/README.md#x)", "[a](attacks.md#x)"),
        ("changelog.md", "[a](docs/runs.md)", "[a](runs.md)"),
        ("api/runs.md", "[a](../runs.md#when)", "[a](../runs.md#when)"),
        ("runs.md", "[a](../examples/demo.py)", "a (`examples/demo.py`)"),
        ("runs.md", "[a](https://example.org/b.md)", "[a](https://example.org/b.md)"),
        ("runs.md", "`[a](b.py)`\n```\n[a](../b.py)\n```", None),
    ],
)
def test_links_that_hold_in_the_repository_hold_in_the_site(page, written, in_the_site):
    if in_the_site is None:
        assert relinked(page, written).endswith("[a](../b.py)\n```")
    else:
        assert relinked(page, written) == in_the_site


def test_a_name_is_linked_to_its_reference_once_in_a_section():
    text = (
        "# `save`\n`save` and `sk.save()`, [`save`](a.md), `saved`\n"
        "## B\n`save`\n```\n`save`\n```\n"
    )
    assert with_references(text, {"save"}) == (
        "# `save`\n[`save`][shardkeep.save] and `sk.save()`, [`save`](a.md), `saved`\n"
        "## B\n[`save`][shardkeep.save]\n```\n`save`\n```\n"
    )


def test_examples_in_docstrings_get_a_fence():
    text = "A box.\n\n>>> Box()\nBox()\n\nMore."
    assert fenced(text) == "A box.\n\n```pycon\n>>> Box()\nBox()\n```\n\nMore."
    assert fenced("None.") == "None."


def test_every_public_name_stands_once_in_the_reference():
    shown = shown_on(DOCS)
    names = [f"shardkeep.{name}" for name in vars(shardkeep)["__all__"]]
    missing = [name for name in names if name not in shown]
    assert missing == [], "put `::: NAME` on the page of docs/api/ where it belongs"
    assert {name: pages for name, pages in shown.items() if len(pages) > 1} == {}


def test_every_page_has_its_place_in_the_navigation():
    text = (ROOT / "mkdocs.yml").read_text()
    listed = nav_pages(yaml.safe_load(text)["nav"])
    there = [str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")]
    missing = {*there, *ELSEWHERE, INDEX} - set(listed)
    assert missing == set(), "add them to `nav` in mkdocs.yml"
    assert len(listed) == len(set(listed))


def test_every_picture_of_the_docs_is_shown_and_says_what_it_shows():
    pages = [ROOT / "README.md", *DOCS.rglob("*.md")]
    shown = re.findall(r"!\[([^\]]+)\]\(([^)]+)\)", "\n".join(page.read_text() for page in pages))
    used = {Path(target).name for _, target in shown}
    assert {path.name for path in DOCS.glob("*.svg")} - used == set()

"""The site is built without a warning and without a network, and all that it links to is there."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from playwright.sync_api import sync_playwright

import shardkeep

CHROMIUM = shutil.which("chromium")
ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.xdist_group("site")

# MkDocs with a socket that leads nowhere.
OFFLINE = """
import runpy, socket, sys

def refuse(*arguments, **options):
    raise OSError("the site is built without a network")

socket.socket.connect = socket.getaddrinfo = refuse
sys.argv = ["mkdocs", *sys.argv[1:]]
sys.path.insert(0, ".")
runpy.run_module("mkdocs", run_name="__main__")
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-c", OFFLINE, "build", "--strict", "--site-dir", str(folder)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr
    return folder


class Tags(HTMLParser):
    """What a page loads, where it links to, and what can be linked to."""

    LOADING = frozenset({"script", "link", "img", "iframe", "source", "video", "audio", "object"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.classes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.ids |= {found[name] for name in ("id", "name") if name in found}
        self.classes |= set(found.get("class", "").split())
        if tag in self.LOADING:
            self.loaded += [found[name] for name in ("src", "href", "data") if name in found]
        elif tag == "a" and "href" in found:
            self.links.append(found["href"])


@cache
def tags_of(page: Path) -> Tags:
    return Tags(page.read_text())


def pages_of(site: Path) -> Iterator[Path]:
    yield from sorted(site.rglob("*.html"))


def is_elsewhere(link: str) -> bool:
    return re.match(r"[a-z]+:|//", link) is not None and not link.startswith("data:")


def test_nothing_is_loaded_from_elsewhere(site):
    loaded = [
        (page.name, one)
        for page in pages_of(site)
        for one in tags_of(page).loaded
        if is_elsewhere(one)
    ]
    assert loaded == []


def test_style_sheets_and_pictures_load_nothing_from_elsewhere(site):
    files = [*site.rglob("*.css"), *site.rglob("*.svg")]
    load = re.compile(
        r"(?:url\(|@import|(?:xlink:)?href=|src=)\s*[\"']?(?:https?:)?//", re.IGNORECASE
    )
    assert [file.name for file in files if load.search(file.read_text())] == []


def test_no_page_has_a_diagram_that_a_script_from_elsewhere_draws(site):
    assert [page.name for page in pages_of(site) if "mermaid" in tags_of(page).classes] == []


def test_every_link_within_the_site_leads_to_something(site):
    lost = []
    for page in pages_of(site):
        for link in tags_of(page).links:
            path, _, anchor = unquote(link).partition("#")
            if is_elsewhere(link) or page.name == "404.html":
                continue
            target = (page.parent / path).resolve() if path else page
            target = target / "index.html" if target.is_dir() else target
            if not target.exists() or (anchor and anchor not in tags_of(target).ids):
                lost.append((page.name, link))
    assert lost == []


def test_search_needs_no_server(site):
    index = (site / "search" / "search_index.js").read_text()
    assert "Checkpointer" in index
    home = tags_of(site / "index.html")
    assert any(one.endswith("iframe-worker.js") for one in home.loaded)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the path (apt-get install chromium)")
def test_a_browser_reads_and_searches_the_site_from_files_alone(site):
    asked: list[str] = []
    with sync_playwright() as playwright:
        # Root, as in containers, cannot have the sandbox; pages are our own.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.goto((site / "index.html").as_uri())
        page.locator("input.md-search__input").focus()
        page.get_by_text("Type to start searching").wait_for(state="attached")
        page.keyboard.type("retention")
        page.wait_for_selector(".md-search-result__link", state="attached")
        found = page.locator(".md-search-result__link").evaluate_all("all => all.map(a => a.href)")
        browser.close()
    assert any("/runs.html" in link for link in found)
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []


def test_every_public_name_is_in_the_index_with_its_reference_and_a_page(site):
    entries = index_entries((site / "keyword-index.html").read_text())
    lacking = {}
    for name in vars(shardkeep)["__all__"]:
        links = entries.get(name, [])
        reference = [link for link in links if link.startswith("api/")]
        if not reference or len(reference) == len(links):
            lacking[name] = links
    assert lacking == {}, "say in a section of docs/ what they are for, in a table or in prose"


def test_every_word_of_the_first_page_and_every_command_is_in_the_index(site):
    entries = index_entries((site / "keyword-index.html").read_text())
    words = (ROOT / "docs" / "index.md").read_text().partition("## Words")[2].partition("\n## ")[0]
    wanted = {
        word for row in re.findall(r"^\| ([A-Za-z ,]+) \|", words, re.M) for word in row.split(", ")
    }
    commands = (ROOT / "docs" / "command-line.md").read_text()
    wanted |= {f"shardkeep {name}" for name in re.findall(r"^  (\w+) [A-Z\[]", commands, re.M)}
    assert len(wanted) > 12
    assert wanted - entries.keys() == set()


def index_entries(html: str) -> dict[str, list[str]]:
    """The links of each entry by its text."""
    items = re.findall(r"<li>(?:<code>)?([^<:]+)(?:</code>)?: (.*?)</li>", html, re.S)
    return {text: re.findall(r'href="([^"]+)"', links) for text, links in items}


def test_docstrings_show_their_examples_as_code(site):
    page = (site / "api" / "layouts.html").read_text()
    assert "&gt;&gt;&gt; " in page
    assert "<blockquote>" not in page

"""What makes a site of the pages? MkDocs calls these functions while it builds."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
# The command `mkdocs`, unlike `python -m mkdocs`, knows the folder of this file alone.
sys.path.insert(0, str(ROOT))

from docs.hooks.keywords import index_page, keywords  # noqa: E402
from docs.hooks.links import (  # noqa: E402
    ELSEWHERE,
    relinked,
    source_of,
    with_references,
)
from docs.hooks.reference import links, members, public_names  # noqa: E402
from docs.hooks.sections import (  # noqa: E402
    Section,
    lines_of,
    sections_of,
    with_hidden_marks,
)

INDEX = "keyword-index.md"
# Pages with tables that need all the room.
WIDE = {"attacks.md", "comparison.md"}
# Pages that name much and explain little of it.
UNEXPLAINING = {INDEX, "attacks.md", "changelog.md", "contributing.md"}
_WAYS = {
    "python ranks=4": "on 4 ranks, after init_process_group: torchrun --nproc-per-node 4",
    "python torchrun=2": "a script: torchrun --nproc-per-node 2",
    "python torchrun=4": "a script: torchrun --nproc-per-node 4",
    "python peers": "a script",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in `docs/`, and the index that is made of all."""
    for page, source in ELSEWHERE.items():
        text = (ROOT / source).read_text()
        files.append(File.generated(config, page, content=text))
    docs = Path(config.docs_dir)
    found = keywords(all_sections(config), links(docs), members(docs))
    files.append(File.generated(config, INDEX, content=index_page(found)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """What a page says, with links and fences as the site needs them."""
    name = page.file.src_uri
    if name in WIDE:
        page.meta["hide"] = ["navigation", "toc"]
    text = _titled(with_hidden_marks(markdown))
    if name == INDEX:
        return text
    return with_references(relinked(name, text), public_names())


def all_sections(config: MkDocsConfig) -> list[Section]:
    """The sections of all pages that explain something, in the order of the navigation."""
    pages = [page for page in nav_pages(config.nav) if not page.startswith("api/")]
    return [
        section
        for page in pages
        if page not in UNEXPLAINING
        for section in sections_of(page, (ROOT / source_of(page)).read_text())
    ]


def nav_pages(nav: Any) -> list[str]:
    """The pages of a navigation, in its order."""
    if isinstance(nav, str):
        return [nav]
    if isinstance(nav, dict):
        return [page for below in nav.values() for page in nav_pages(below)]
    return [page for one in nav for page in nav_pages(one)]


def _titled(text: str) -> str:
    """Examples say how they are run."""
    lines: list[str] = []
    for line, _ in lines_of(text):
        way = _WAYS.get(line.strip().removeprefix("```"))
        lines.append(f'```python title="{way}"\n' if way and line.startswith("```") else line)
    return "".join(lines)

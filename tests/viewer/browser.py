"""How does a test look at the viewer? In a real Chromium, at a real server."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def missing() -> str:
    """What the machine lacks to run a browser; empty if nothing."""
    for module in ("starlette", "uvicorn", "playwright"):
        try:
            __import__(module)
        except ImportError:
            return f"{module} is not installed: pip install -e '.[dev]'"
    if chromium() is None:
        return f"no browser: none of {', '.join(NAMES)} is on the path (apt-get install chromium)"
    return ""


def chromium() -> str | None:
    """The browser's program."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


@contextmanager
def started_browser() -> Generator[Any]:
    """A browser without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Root, as in containers, cannot have the sandbox; pages are our own.
        found = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield found
        found.close()


@contextmanager
def serving(paths: Sequence[Path | str]) -> Generator[str]:
    """The address at which `shardkeep serve` shows these."""
    process = subprocess.Popen(
        [sys.executable, "-m", "shardkeep", "serve", *map(str, paths), "--no-open"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait(20)


class Window:
    """A window of the browser; what goes wrong in it is not lost."""

    def __init__(self, context: Any, url: str) -> None:
        context.set_default_timeout(20_000)
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
        """The page, showing a view and all that belongs to it."""
        asked = f"#/{view}?{urlencode(query)}"
        self.page.goto(f"{self.base}{asked}")
        self.page.wait_for_selector(f'main[data-shown="{asked}"]')
        self.page.wait_for_selector(".waiting", state="detached")
        return self.page

    def find(self, words: str) -> None:
        """Search the tree by the keyboard and open the one tensor that is meant."""
        self.page.keyboard.press("/")
        self.page.keyboard.type(words)
        self.page.wait_for_selector("text=1 match")
        self.page.keyboard.press("Enter")

    def text(self) -> str:
        return self.page.inner_text("main")

    def begin_anew(self) -> None:
        """As a window that was just opened, without the price of one."""
        self.troubles.clear()
        self.page.set_viewport_size(_SIZE)
        self.page.evaluate("() => localStorage.clear()")
        self.page.goto(self.base)
        self.page.reload()


_SIZE: Any = {"width": 1200, "height": 900}


def opened(browser: Any, url: str, **options: Any) -> Iterator[Window]:
    """A window of its own; it must come to its end without trouble."""
    context = browser.new_context(viewport=_SIZE, **options)
    window = Window(context, url)
    yield window
    context.close()
    assert window.troubles == []

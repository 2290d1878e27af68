"""How does a test look at the viewer? In a real Chromium, at a real server."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
def serving(paths: Sequence[Path]) -> Generator[str]:
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

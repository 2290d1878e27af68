"""Pictures of every view, for the documentation.

    python -m tests.viewer.screenshots docs/images

A run such as training leaves is made, served, and looked at by a real Chromium: in light and dark
colours, on a desk and on a phone.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from PIL import Image

from tests.viewer.browser import missing, serving, started_browser
from tests.viewer.demo_run import BAD, make_run

AT = "0/step-00000600"
VIEWS = {
    "run": ("run", {}),
    "checkpoint": ("checkpoint", {"at": AT}),
    "tensor": ("tensor", {"at": AT, "key": BAD, "rows": "24:56", "columns": "0:48"}),
    "compare": ("compare", {"a": "0/step-00000200", "b": AT, "key": BAD}),
    "what-if": ("what-if", {"at": AT, "mesh": "dp=4,tp=2"}),
}
SIZES = {"": (1280, 860), "-phone": (390, 844)}
# Of the phone, the page shows these alone.
PHONE = ("checkpoint-phone-light", "tensor-phone-dark")


def main(folder: Path) -> None:
    """Write all pictures."""
    if missing():
        sys.exit(missing())
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        run = make_run(Path(scratch) / "runs" / "tiny-gpt", width=160)
        with serving([run]) as url, started_browser() as browser:
            for theme in ("light", "dark"):
                for size, (width, height) in SIZES.items():
                    context = browser.new_context(
                        viewport={"width": width, "height": height}, color_scheme=theme
                    )
                    shoot(context.new_page(), url, folder, f"{size}-{theme}")
                    context.close()


def shoot(page: Any, url: str, folder: Path, ending: str) -> None:
    """Pictures of all views in this window."""
    page.goto(url)
    for name, (view, query) in VIEWS.items():
        if "phone" in ending and f"{name}{ending}" not in PHONE:
            continue
        asked = f"#/{view}?{urlencode(query)}"
        page.goto(f"{url.split('?')[0]}{asked}")
        page.wait_for_selector(f'main[data-shown="{asked}"]')
        page.wait_for_selector(".waiting", state="detached")
        page.wait_for_timeout(300)
        taken = Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB")
        # 256 colours are enough for it, and take a third of the room.
        few = taken.quantize(256, dither=Image.Dither.NONE)
        few.save(folder / f"viewer-{name}{ending}.png", optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

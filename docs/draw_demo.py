"""How does docs/demo.svg come to be? It is what the demo prints, as a picture.

Run `.venv/bin/torchrun --standalone --nproc-per-node 4 docs/draw_demo.py` after a change to it.
"""

import io
import os
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "examples"))

import reshard_demo  # noqa: E402

# A picture in a page cannot fetch fonts, so it names only what readers have.
TEMPLATE = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: monospace; font-size: {char_height}px; }}
.{unique_id}-title {{ font-family: sans-serif; font-size: 18px; font-weight: bold; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" \
clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def main() -> int:
    """Run the demo; rank 0 writes the picture."""
    console = Console(file=io.StringIO(), width=78, record=True, highlight=False)
    failed = reshard_demo.main(console)
    if os.environ["RANK"] == "0" and not failed:
        svg = console.export_svg(
            title="make demo",
            theme=SVG_EXPORT_THEME,
            code_format=TEMPLATE,
            font_aspect_ratio=0.602,  # of most monospaced fonts
            unique_id="demo",
        )
        (HERE / "demo.svg").write_text(svg.replace("><", ">\n<"))
    return failed


if __name__ == "__main__":
    raise SystemExit(main())

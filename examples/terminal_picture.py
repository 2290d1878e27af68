"""How does the command line look? A picture of a terminal, for the README.

    python examples/terminal_picture.py build/demo/run docs/terminal.svg

The commands run in a window of 100 columns, on the newest checkpoints of a run such as the one
that `make demo` leaves. What they print is what the picture shows.
"""

from __future__ import annotations

import argparse
import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

COLUMNS = 100
KEY, MODULE = "model.blocks.0.up.weight", "model.blocks.0.*.weight"


def commands(run: Path) -> list[list[str]]:
    """What is typed, word by word."""
    steps = sorted(path.name for path in run.glob("step-*"))
    return [
        ["ls", "run"],
        ["show", f"run/{steps[-1]}", KEY, "--stats"],
        ["diff", f"run/{steps[-2]}", f"run/{steps[-1]}", MODULE],
    ]


def in_terminal(words: list[str], folder: Path) -> str:
    """What a window shows, colours included."""
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    hidden = ("COLUMNS", "NO_COLOR")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    process = subprocess.Popen(
        [sys.executable, "-m", "shardkeep", *words],
        cwd=folder,
        stdout=child,
        stderr=child,
        env={**environment, "TERM": "xterm-256color"},
    )
    os.close(child)
    shown = b""
    # The end of a terminal that nobody writes to any more is an error.
    while piece := _read(parent):
        shown += piece
    os.close(parent)
    process.wait()
    return shown.decode().replace("\r\n", "\n").rstrip()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


def typed(words: list[str]) -> str:
    """The words as a shell takes them."""
    return " ".join(f"'{word}'" if "*" in word else word for word in ["shardkeep", *words])


def picture(run: Path) -> str:
    """The terminal as SVG."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    for words in commands(run):
        console.print(Text.assemble(("$ ", "bold green"), (typed(words), "bold")))
        console.print(Text.from_ansi(in_terminal(words, run.parent)))
        console.print()
    svg = console.export_svg(title="shardkeep", theme=MONOKAI, unique_id="shardkeep")
    # Fonts come from the machine that shows it: nothing is fetched.
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="a run's folder, called run")
    parser.add_argument("svg", type=Path)
    options = parser.parse_args()
    options.svg.write_text(picture(options.run.resolve()))


if __name__ == "__main__":
    main()

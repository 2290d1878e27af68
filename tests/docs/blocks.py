"""Which examples does a page have, how do they run, and what should they print?

A block is fenced as `python`; an info string `python ranks=4` has it run on four ranks,
`python torchrun=4`, or 2, as a script of its own, and `python peers` as a script where other
libraries are installed. A `text` block right below shows what it prints.
"""

import contextlib
import io
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]

Way = Literal["here", "ranks", "torchrun", "peers"]
_WAYS: dict[str, tuple[Way, int]] = {
    "python": ("here", 1),
    "python ranks=4": ("ranks", 4),
    "python torchrun=2": ("torchrun", 2),
    "python torchrun=4": ("torchrun", 4),
    "python peers": ("peers", 1),
}
_FENCE = re.compile(r"```(.*)")


@dataclass(frozen=True)
class Block:
    """Code with the page's line on which it starts, and what the page says that it prints."""

    way: Way
    processes: int
    line: int
    code: str
    shown: str = ""


def blocks_of(text: str) -> list[Block]:
    """The examples of a page, in its order."""
    found: list[Block] = []
    is_next = False  # Whether nothing but blank lines came since the last example.
    lines = iter(enumerate(text.splitlines(keepends=True), 1))
    for number, line in lines:
        fence = _FENCE.match(line)
        if fence is None:
            is_next = is_next and not line.strip()
            continue
        body = _body(lines)
        info = fence[1].strip()
        if info.startswith("python"):
            found.append(Block(*_WAYS[info], number + 1, body))
        elif info == "text" and is_next:
            found[-1] = replace(found[-1], shown=body)
        is_next = info.startswith("python")
    return found


def _body(lines: Any) -> str:
    body: list[str] = []
    for _, line in lines:
        if line.startswith("```"):
            return "".join(body)
        body.append(line)
    raise ValueError("the last block of the page has no end")


def run_block(page: str, line: int, code: str, names: dict[str, Any]) -> str:
    """What the code prints. An error names the page and its line."""
    printed = io.StringIO()
    compiled = compile("\n" * (line - 1) + code, str(ROOT / page), "exec")
    with contextlib.redirect_stdout(printed):
        exec(compiled, names)
    return printed.getvalue()


def run_on_rank(rank: int, world: int, *, page: str, blocks: list[tuple[int, str]]) -> list[str]:
    """What each of the blocks prints on this rank; they share their names."""
    names: dict[str, Any] = {"__name__": "__main__"}
    return [run_block(page, line, code, names) for line, code in blocks]

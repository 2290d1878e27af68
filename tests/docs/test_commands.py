"""Every command that a page shows can be typed: its name, its options, its targets."""

import re
import shlex
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
from cyclopts import CycloptsError, MissingArgumentError

from shardkeep.cli.app import make_app
from shardkeep.cli.table import COMMANDS

ROOT = Path(__file__).parents[2]
PAGES = [
    *("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"),
    *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))),
]
NAMES = {command.name for commands in COMMANDS.values() for command in commands}
BLOCK = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def shown_in(page: str) -> list[str]:
    """The lines of shells that a page shows, in blocks and within its text."""
    text = (ROOT / page).read_text()
    lines: list[str] = []
    for kind, block in BLOCK.findall(text):
        if kind in ("sh", "bash", "console", "text", ""):
            typed = [line.strip() for line in block.replace("\\\n", " ").splitlines()]
            # Beside a prompt stands what is printed.
            prompts = [line[2:] for line in typed if line.startswith("$ ")]
            lines += prompts or (typed if kind == "sh" else [])
    return lines + re.findall(r"`([^`\n]+)`", BLOCK.sub("", text))


def parse(words: list[str]) -> None:
    """Raise for words that the command line does not understand."""
    make_app().parse_args(words, exit_on_error=False, print_error=False)


def words_of(line: str) -> list[str]:
    try:
        return shlex.split(line.partition(" && ")[0], comments=True)
    except ValueError:
        return []


@pytest.mark.parametrize("page", PAGES)
def test_commands_and_options_are_those_that_there_are(page):
    for line in shown_in(page):
        words = words_of(line)
        if "shardkeep" in words and words[:1] == ["torchrun"]:
            words = words[words.index("shardkeep") :]
        if words[:1] != ["shardkeep"] or len(words) < 2 or words[1].startswith("-"):
            continue
        assert words[1] in NAMES, f"{page}: {line}"
        if len(words) == 2 or "|" in words or ">" in words:
            continue
        # A part of a command is no command: `shardkeep serve --port 8000`.
        with suppress(MissingArgumentError):
            parse(words[1:])


@pytest.mark.parametrize("page", PAGES)
def test_targets_and_modules_are_those_that_there_are(page):
    for line in shown_in(page):
        words = words_of(line)
        if words[:1] == ["make"]:
            named = [word for word in words[1:] if re.fullmatch(r"[a-z-]+", word)]
            assert set(named) <= TARGETS, f"{page}: {line}"
        if words[:2] == ["python", "-m"] and words[2] not in ("pip", "pytest", "venv", "mkdocs"):
            assert find_spec(words[2]), f"{page}: {line}"
        if words[:1] == ["python"] and re.fullmatch(r".*/.*\.py", " ".join(words[1:2])):
            assert (ROOT / words[1]).exists(), f"{page}: {line}"


def test_what_nobody_can_type_is_found():
    with pytest.raises(CycloptsError, match="--prot"):
        parse(["serve", "runs/a", "--prot", "8000"])
    assert any(line.startswith("shardkeep serve") for line in shown_in("docs/viewer.md"))

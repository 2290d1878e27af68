"""The README's picture of a terminal is what the commands print."""

import html
import re
from pathlib import Path

import pytest
import torch

import shardkeep as sk
from examples import terminal_picture

ROOT = Path(__file__).parents[2]


def lines_of(svg: str) -> list[str]:
    """The lines of a picture, each character in the column where it is drawn."""
    rows: dict[float, list[tuple[float, str]]] = {}
    for x, y, text in re.findall(r'<text [^>]*x="([\d.]+)" y="([\d.]+)"[^>]*>(.*?)</text>', svg):
        rows.setdefault(float(y), []).append((float(x), html.unescape(text).replace("\xa0", " ")))
    lines = []
    for _, parts in sorted(rows.items()):
        line = ""
        for x, text in sorted(parts):
            line = line.ljust(round(x / 12.2)) + text
        lines.append(line.rstrip())
    return lines


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("picture") / "run"
    names = ("up", "down")
    state = {f"model.blocks.0.{name}.weight": torch.ones(8, 4) for name in names}
    with sk.Checkpointer(root, durable=False) as kept:
        for step in (1, 2):
            kept.save(step, {key: value * step for key, value in state.items()})
    return root


def test_the_picture_shows_what_the_commands_print(run):
    lines = lines_of(terminal_picture.picture(run))
    assert "$ shardkeep ls run" in lines
    assert any(re.fullmatch(r" +2  committed +[\d.]+ KiB +\d+ s +1", line) for line in lines)
    assert "model.blocks.0.up.weight  F32    8 x 4  128 B    2    2     2    0" in lines
    assert "2 tensors differ, 0 are equal" in lines
    assert max(map(len, lines)) <= terminal_picture.COLUMNS


def test_the_picture_of_the_readme_shows_the_demos_run():
    lines = lines_of((ROOT / "docs" / "terminal.svg").read_text())
    typed = [line for line in lines if line.startswith("$ ")]
    assert [line.split()[2] for line in typed] == ["ls", "show", "diff"]
    assert any(" committed " in line for line in lines)
    assert max(map(len, lines)) <= terminal_picture.COLUMNS

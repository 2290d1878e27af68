"""What was found about other libraries is shown once all of them were asked the same."""

from pathlib import Path

import pytest

from torture.marks import marks
from torture.peers.contests import Finding
from torture.peers.kept import NAME, PAGES, keep, markdown, show

NAMES = ("ours", "theirs")
START, STOP = marks(NAME)


def found(name: str, text: str) -> dict[str, dict[str, Finding]]:
    return {"flips": {name: Finding(text, good=True)}}


def test_libraries_asked_one_after_the_other_make_one_table(tmp_path: Path):
    path = tmp_path / "peers.json"
    keep("ask --seed 0", {"ours": "1"}, found("ours", "none"), path)
    kept = keep("ask --seed 0", {"theirs": "2"}, found("theirs", "all"), path)
    assert markdown(kept, NAMES).splitlines()[2:] == [
        "| library | flips |",
        "|---|---|",
        "| ours 1 | none |",
        "| theirs 2 | all |",
    ]


def test_other_questions_begin_a_table_of_their_own(tmp_path: Path):
    path = tmp_path / "peers.json"
    keep("ask --seed 0", {"ours": "1"}, found("ours", "none"), path)
    kept = keep("ask --seed 1", {"theirs": "2"}, found("theirs", "all"), path)
    with pytest.raises(KeyError, match="ours"):
        markdown(kept, NAMES)


def test_the_table_takes_the_place_between_the_marks(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text(f"a\n{START}\nold\n{STOP}\nb\n")
    show("new", [page])
    assert page.read_text() == f"a\n{START}\nnew\n{STOP}\nb\n"


def test_all_pages_show_the_same_table():
    tables = {page.read_text().split(START)[1].split(STOP)[0] for page in PAGES}
    assert len(tables) == 1

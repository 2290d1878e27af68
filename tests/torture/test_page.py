"""What each campaign's long run found is kept until it runs again, and shown in one table."""

from pathlib import Path

import pytest

from torture import page
from torture.campaign import Tally
from torture.campaigns import CAMPAIGNS
from torture.kept import Ran, keep, present_commit, ran_now, read
from torture.marks import marks


def ran(name: str, cases: int, **more: object) -> Ran:
    return Ran(f"python -m torture {name}", "2026-01-02", "abc", Tally(name, 3, cases, **more))  # type: ignore[arg-type]


def test_a_campaign_keeps_its_last_run(tmp_path: Path):
    path = tmp_path / "build" / "torture.json"
    keep(ran("kills", 1), path)
    keep(ran("soak", 2, facts={"lives": 5}, seconds=90.0), path)
    keep(ran("kills", 1000, violations=["lost"]), path)

    kept = read(path)
    assert kept["kills"].tally.cases == 1000
    assert page.markdown(kept, ["kills", "soak"]).splitlines()[2:] == [
        "| kills | 1,000 | 1 | 0.0 min | 2026-01-02 | abc | `python -m torture kills` |  |",
        "| soak | 2 | 0 | 1.5 min | 2026-01-02 | abc | `python -m torture soak` | lives 5 |",
    ]


def test_a_run_says_how_to_repeat_it():
    made = ran_now(Tally("kills", 7), present_commit())
    assert made.command == "python -m torture kills --seed 7"
    assert made.commit


def test_the_page_has_a_line_for_every_campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path, shown = tmp_path / "torture.json", tmp_path / "page.md"
    shown.write_text("\nold\n".join(marks(page.NAME)))
    monkeypatch.setattr(page, "read", lambda: read(path))
    monkeypatch.setattr(page, "PAGE", shown)
    first, *others = [one.name for one in CAMPAIGNS]
    keep(ran(first, 1), path)
    page.main()
    text = shown.read_text()
    assert "old" not in text
    assert f"| {first} | 1 | 0 |" in text
    assert all(f"| {name} | not run yet |" in text for name in others)

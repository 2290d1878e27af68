"""What benchmarks say follows from their figures, and from nothing else."""

import xml.etree.ElementTree as ET

import pytest

from benchmarks.bars import Panel, picture
from benchmarks.claims import claims_of
from benchmarks.figures import Figure
from benchmarks.kept import Kept, read, write
from benchmarks.page import markdown, panels_of
from benchmarks.summary import summary
from benchmarks.tables import notes


def saves(**seconds: float) -> list[Figure]:
    names = {"dcp": "DCP", "dcp2": "DCP, 2 threads"}
    return [
        Figure("W1", "tmpfs", "save", names.get(name, name), (9 * value, value, value / 9))
        for name, value in seconds.items()
    ]


def kept_of(figures: list[Figure]) -> Kept:
    return Kept("One process", "", "2001-01-01", "abc", 1.0, {"cores": "2"}, figures)


def reached(figures: list[Figure], what: str):
    (claim,) = [one for one in claims_of(figures) if one.what == what]
    return claim


def test_the_share_of_raw_is_a_ratio_of_medians():
    claim = reached(saves(shardkeep=1.0, raw=0.9), "tmpfs, save: speed of raw")
    assert claim.reached == pytest.approx(0.9)
    assert (claim.asked_text, claim.verdict) == ("≥ 0.95 x", "not met")


def test_a_goal_is_met_at_its_limit():
    claim = reached(saves(shardkeep=1.0, raw=0.95), "tmpfs, save: speed of raw")
    assert claim.verdict == "met"


def test_dcp_is_taken_at_its_best_where_the_goal_says_so():
    figures = saves(shardkeep=1.0, dcp=3.0, dcp2=1.4)
    assert reached(figures, "tmpfs, save: faster than DCP's default").reached == 3.0
    assert reached(figures, "tmpfs, save: faster than DCP's best").reached == 1.4


@pytest.mark.parametrize(
    ("ours", "raw", "remark"),
    [(1.25, 1.0, "raw itself: 1.40 x"), (1.25, 0.5, ""), (0.5, 1.0, "")],
    ids=["raw misses it, too", "raw reaches it", "met"],
)
def test_a_goal_that_raw_itself_misses_says_so(ours: float, raw: float, remark: str):
    figures = saves(shardkeep=ours, raw=raw, dcp=1.4)
    assert reached(figures, "tmpfs, save: faster than DCP's best").remark == remark
    assert ("Raw itself, which only moves" in markdown({"W1": kept_of(figures)})) == bool(remark)


def test_what_was_not_measured_is_not_met():
    claim = reached(saves(raw=1.0), "tmpfs, save: speed of raw")
    assert (claim.is_met, claim.verdict, claim.reached_text) == (None, "not measured", "")


def test_bars_are_well_formed_and_least_first():
    figures = [*saves(raw=1.0, shardkeep=2.0), *saves(**{"a <b> & c": 0.5})]
    drawn = picture("Saves & loads", [Panel.of("save", figures), Panel.of("again", figures)])
    names = [one.text for one in ET.fromstring(drawn).iter() if one.text in ("a <b> & c", "raw")]
    assert names == ["a <b> & c", "raw"] * 2


def test_the_page_has_every_figure_every_goal_and_who_did_not_take_part():
    absent = Figure("W1", "tmpfs", "save", "slowpoke", (), note="not installed")
    figures = [*saves(shardkeep=1.25, raw=1.0), absent]
    page = markdown({"W1": kept_of(figures)})
    assert "| shardkeep | 1.25 s (1.25) |" in page
    assert "slowpoke (tmpfs, save): not installed" in page
    assert all(claim.what in page for claim in claims_of(figures))
    assert notes(figures) == ["slowpoke (tmpfs, save): not installed"]
    assert [panel.heading for panel in panels_of(figures)] == ["save"]


def test_figures_come_back_as_they_were_kept(tmp_path):
    path = tmp_path / "build" / "bench.json"
    assert read(path) == {}
    kept = kept_of(saves(raw=0.1))
    write(path, {"W1": kept})
    assert read(path) == {"W1": kept}


def test_a_summary_takes_each_library_at_its_best_and_leaves_out_what_we_did_not_do():
    figures = [*saves(shardkeep=1.0, dcp=3.0, dcp2=1.5), *saves(**{"torch.save": 0.5})]
    figures.append(Figure("W1", "tmpfs", "load", "DCP", (1.0,)))
    _, _, *rows = summary(figures).splitlines()
    assert rows == ["| save 2 GiB, one process | 1.00 s | 1.50 s |  |  |  |  |  | **500 ms** |"]

"""Write what the last runs found into docs/performance.md: `python -m benchmarks.page`.

And a summary into README.md and docs/comparison.md. Only between the pages' marks; the pictures are
made anew. Takes benchmarks/kept.json.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.bars import Bar, Panel, picture
from benchmarks.claims import Claim, claims_of, value_text
from benchmarks.figures import OURS, RAW, Figure, grouped
from benchmarks.kept import FULL, Kept, read
from benchmarks.places import BUILD
from benchmarks.summary import ROWS, summary
from benchmarks.tables import notes
from benchmarks.workloads import planning
from benchmarks.workloads.every import WORKLOADS
from torture.marks import put_between

ROOT = BUILD.parent
PAGE = ROOT / "docs" / "performance.md"
SUMMARIES = (ROOT / "README.md", ROOT / "docs" / "comparison.md")
_COLUMNS = 5

NameOf = Callable[[Figure], str]


def main() -> None:
    """Write the page and its pictures."""
    kept = read(FULL)
    absent = [name for name in WORKLOADS if name not in kept]
    if absent:
        raise SystemExit(f"{FULL} lacks {', '.join(absent)}: run python -m benchmarks first")
    for name, one in kept.items():
        _picture_path(name).write_text(picture(f"{name}: {one.title}", panels_of(one.figures)))
    put_between(PAGE, "figures", f"\n{markdown(kept)}\n")
    figures = [figure for one in kept.values() for figure in one.figures]
    shown = {workload: kept[workload] for _, workload, _, _ in ROWS}
    for page in SUMMARIES:
        put_between(page, "speed", f"{summary(figures)}\n\n{_made(shown)}")


def _picture_path(workload: str) -> Path:
    return PAGE.parent / f"performance-{workload.lower()}.svg"


def panels_of(figures: Sequence[Figure]) -> list[Panel]:
    """One for each setting and act that more than one took part in."""
    if any(one.workload == planning.NAME for one in figures):
        return _planning_panels(figures)
    settings = {one.setting for one in figures}
    return [
        Panel.of(act if len(settings) == 1 else f"{setting}: {act}", several)
        for (_, setting, act), several in grouped(figures).items()
        if sum(bool(one.values) for one in several) > 1
    ]


def _planning_panels(figures: Sequence[Figure]) -> list[Panel]:
    """By act, a bar for each setting; DCP's say so."""
    acts = dict.fromkeys(one.act for one in figures)
    return [Panel(act, [_setting_bar(one) for one in figures if one.act == act]) for act in acts]


def _setting_bar(one: Figure) -> Bar:
    bar = Bar.of(one)
    is_ours = one.contender == OURS
    return replace(bar, name=one.setting if is_ours else f"{one.contender}, {one.setting}")


def markdown(kept: Mapping[str, Kept]) -> str:
    """Asked and reached, then every workload."""
    figures = [figure for one in kept.values() for figure in one.figures]
    claims = claims_of(figures)
    met = sum(claim.is_met is True for claim in claims)
    parts = [
        "## Asked and reached",
        f"{met} of {len(claims)} goals are met.{_beyond_raw(claims)} {_made(kept)}",
        _claims_table(claims),
    ]
    for name, one in kept.items():
        parts += _section(name, one)
    return "\n\n".join(parts)


def _beyond_raw(claims: Sequence[Claim]) -> str:
    count = sum(claim.is_beyond_raw for claim in claims)
    if not count:
        return ""
    return f" Raw itself, which only moves the bytes, misses {count} of the others."


def _made(kept: Mapping[str, Kept]) -> str:
    one = next(iter(kept.values()))
    machine = ", ".join(
        f"{name} {value}" if name not in ("processor", "memory", "system") else value
        for name, value in one.machine.items()
        if name != "cores"
    )
    dates = " and ".join(sorted({each.date for each in kept.values()}))
    commits = ", ".join(sorted({each.commit for each in kept.values()}))
    return f"Measured on {dates} (commit {commits}) on {one.machine['cores']} cores: {machine}."


def _claims_table(claims: Sequence[Claim]) -> str:
    lines = ["| | what | asked | reached | |", "|---|---|---|---|---|"]
    for one in claims:
        verdict = one.verdict if one.is_met else f"**{one.verdict}**"
        verdict += f" ({one.remark})" if one.remark else ""
        row = one.workload, one.what, one.asked_text, one.reached_text, verdict
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def _section(name: str, one: Kept) -> list[str]:
    file = _picture_path(name).name
    parts = [f"## {name}: {one.title}", f"![{one.title}: medians as bars]({file})"]
    parts.append(f"Measured on {one.date}, commit {one.commit}.")
    parts += _tables(one.figures)
    said = notes(one.figures)
    if said:
        parts.append("Did not take part: " + "; ".join(said) + ".")
    return parts


def _tables(figures: Sequence[Figure]) -> list[str]:
    """Of few settings and acts one table, of more one for each setting, of many a long one."""
    settings = list(dict.fromkeys(one.setting for one in figures))
    if len(settings) > _COLUMNS:
        return [_pivot(figures, lambda one: f"{one.contender}, {one.setting}", _act)]
    if len(settings) > 1 and len(grouped(figures)) <= _COLUMNS:
        return [_pivot(figures, _contender, lambda one: f"{one.setting}: {one.act}")]
    return [
        _pivot(
            [one for one in figures if one.setting == each],
            _contender,
            lambda one: one.act if len(settings) == 1 else f"{one.setting}: {one.act}",
        )
        for each in settings
    ]


def _act(one: Figure) -> str:
    return one.act


def _contender(one: Figure) -> str:
    return one.contender


def _pivot(figures: Sequence[Figure], row_of: NameOf, column_of: NameOf) -> str:
    """Medians, each with its times of raw, where raw took part."""
    columns = list(dict.fromkeys(column_of(one) for one in figures))
    rows: dict[str, dict[str, str]] = {}
    for several in grouped(figures).values():
        for one in several:
            if one.values:
                rows.setdefault(row_of(one), {})[column_of(one)] = _cell(one, several)
    lines = [f"| | {' | '.join(columns)} |", f"|---{'|---:' * len(columns)}|"]
    for name, cells in rows.items():
        lines.append(f"| {name} | {' | '.join(cells.get(one, '') for one in columns)} |")
    return "\n".join(lines)


def _cell(one: Figure, several: Sequence[Figure]) -> str:
    text = value_text(one.median, one.unit)
    raw = [rival.median for rival in several if rival.contender == RAW and rival.values]
    return f"{text} ({one.median / raw[0]:.2f})" if raw and raw[0] else text


if __name__ == "__main__":
    main()

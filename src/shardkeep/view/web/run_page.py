"""How has a run gone so far: its checkpoints over time, their cost, and why each is kept?"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from shardkeep.errors import ShardkeepError
from shardkeep.plan.retention import Retention
from shardkeep.storage.shelf import Shelf
from shardkeep.transfer.prune import saves_under_way
from shardkeep.transfer.report import SaveReport, read_report
from shardkeep.transfer.steps import StepRecord, current, newest, read_steps
from shardkeep.view.web.library import Place

# A page that looks again and again takes at most this part of the time.
_SHARE = 0.05
_SOONEST_SECONDS = 1.0


def run_page(place: Place, shelf: Shelf) -> dict[str, Any]:
    """The run as its page shows it."""
    start = time.monotonic()
    records = read_steps(shelf)
    rule = _rule(records)
    kept = _kept_by(records, rule)
    steps = [_step(place, shelf, one, records, kept) for one in records]
    took = time.monotonic() - start
    return {
        "id": place.id,
        "name": place.name,
        "path": str(place.path),
        "keep": rule.as_json(),
        "steps": steps,
        "look_again": round(max(_SOONEST_SECONDS, took / _SHARE), 1),
    }


def _rule(records: Sequence[StepRecord]) -> Retention:
    """What the run keeps, as its newest checkpoint says."""
    last = newest(records)
    return Retention.from_json(last.keep) if last else Retention()


def _kept_by(records: Sequence[StepRecord], rule: Retention) -> Mapping[int, list[str]]:
    if rule == Retention():
        return {}
    committed = [one.as_saved for one in current(records) if one.condition == "committed"]
    found: dict[int, list[str]] = {}
    for name, steps in rule.kept_by(committed).items():
        for step in steps:
            found.setdefault(step, []).append(name)
    return found


def _step(
    place: Place,
    shelf: Shelf,
    one: StepRecord,
    records: Sequence[StepRecord],
    kept: Mapping[int, list[str]],
) -> dict[str, Any]:
    going_on = {(other.step, other.save_id) for other in current(records)}
    return {
        "at": f"{place.id}/{one.name}",
        "step": one.step,
        "name": one.name,
        "state": _state(shelf, one),
        "problem": one.problem,
        "nbytes": one.nbytes,
        "ranks": one.world,
        "saved_at": one.saved_at or shelf.changed_at(one.name),
        "metrics": {name: finite(value) for name, value in one.metrics.items()},
        "kept_by": kept.get(one.step, []),
        "left_behind": (one.step, one.save_id) not in going_on,
        **_times(shelf, one.name, one.save_id),
    }


def finite(number: float) -> float | str:
    """JSON has no nan and no inf: they go by their names."""
    return number if number - number == 0 else str(number)


def _state(shelf: Shelf, one: StepRecord) -> str:
    """The condition; a save that is under way is told from one that was broken off."""
    if one.condition != "half-written":
        return one.condition
    try:
        with shelf.open(one.name) as storage:
            return "in progress" if saves_under_way(storage) else one.condition
    except ShardkeepError:
        return one.condition


_known_times: dict[tuple[str, str, str], dict[str, Any]] = {}


def _times(shelf: Shelf, name: str, save_id: str) -> dict[str, Any]:
    """How long the save took, and for how much of that training stood still."""
    known = shelf.location, name, save_id
    found = _known_times.get(known)
    if found is not None:
        return found
    report = _report(shelf, name, save_id)
    if report is None or not report.ranks:
        # Not kept in mind: it may still come.
        return {"seconds": None, "blocked": None}
    by_rank = [sum(times) for times in zip(*report.seconds.values(), strict=True)] or [0.0]
    whole = max(by_rank) + report.commit_seconds
    staged = report.seconds.get("stage")
    # A save in the background holds training up only while it copies.
    blocked = max(staged) if staged else whole
    found = {"seconds": round(whole, 4), "blocked": round(blocked, 4)}
    _known_times[known] = found
    return found


def _report(shelf: Shelf, name: str, save_id: str) -> SaveReport | None:
    if not save_id:
        return None
    try:
        with shelf.open(name) as storage:
            return read_report(storage, save_id)
    except ShardkeepError:
        return None

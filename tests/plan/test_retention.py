"""Is every step kept that a rule names, and no other?"""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, strategies as st

from shardkeep.errors import InvalidError
from shardkeep.plan.retention import Retention, SavedStep, ranked

METRICS = st.one_of(st.none(), st.sampled_from([0.0, 1.0, 2.0, math.inf, -math.inf, math.nan]))
RUNS = st.dictionaries(st.integers(0, 60), METRICS, max_size=12)


def saved(run: dict[int, float | None]) -> list[SavedStep]:
    return [SavedStep(step, {} if loss is None else {"loss": loss}) for step, loss in run.items()]


@given(RUNS, st.none() | st.integers(1, 5), st.none() | st.integers(1, 9), st.integers(0, 3))
def test_the_union_of_all_rules_is_kept_and_nothing_else(run, last, every, best):
    rule = Retention(last, every, ("loss", "min", best) if best else None)
    steps = sorted(run)
    kept = set(steps[-1:])
    if last is not None:
        kept |= {step for step in steps if sum(other > step for other in steps) < last}
    if every is not None:
        kept |= {step for step in steps if step % every == 0}
    known = {step: loss for step, loss in run.items() if loss is not None and loss == loss}
    for _ in range(best):
        if known:
            winner = min(known, key=lambda step: (known[step], -step))
            kept.add(winner)
            del known[winner]
    if last is every is None and not best:
        kept = set(steps)

    assert rule.dropped(saved(run)) == [step for step in steps if step not in kept]


@given(RUNS)
def test_without_a_rule_everything_is_kept(run):
    assert Retention().dropped(saved(run)) == []


def test_the_newest_is_kept_also_where_no_rule_names_it():
    assert Retention(every=10).dropped(saved({5: None, 10: None, 15: None, 17: None})) == [5, 15]
    assert Retention(best=("loss", "max", 1)).dropped(saved({1: 5.0, 2: 4.0, 3: 3.0})) == [2]


def test_of_equals_the_newer_is_better():
    assert ranked(saved({1: 1.0, 2: 1.0, 3: 2.0}), "loss", "min") == [2, 1, 3]
    assert ranked(saved({1: 1.0, 2: 1.0, 3: 2.0}), "loss", "max") == [3, 2, 1]


def test_what_is_not_a_number_is_never_the_best():
    assert ranked(saved({1: math.nan, 2: 9.0, 3: None}), "loss", "min") == [2]
    assert ranked(saved({1: math.nan, 2: 9.0, 3: math.inf}), "loss", "max") == [3, 2]


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ({"last": 0}, "keep_last must be at least 1, got 0"),
        ({"every": -1}, "keep_every must be at least 1, got -1"),
        ({"best": ("loss", "least", 1)}, "keep_best is .*got .*least"),
        ({"best": ("loss", "min", 0)}, "keep_best is .*got .*0"),
        ({"best": ("loss", "min")}, "keep_best is .*how many"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(rule: dict[str, Any], text: str):
    with pytest.raises(InvalidError, match=text):
        Retention(**rule)

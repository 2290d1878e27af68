"""What a load would cost is what the plan of that load comes to."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
from hypothesis import HealthCheck, given, settings, strategies as st

from shardkeep.manifest import itemsize
from shardkeep.plan.reads import SpanRead, WindowRead
from shardkeep.testing.example_counts import examples
from shardkeep.transfer.cost import CostPlanner, cost_of, kinds_of
from shardkeep.transfer.load import BIT_DTYPES, ReadRule, Want, plan_load
from shardkeep.transfer.opened import open_committed
from tests.transfer.distant import distant_memory
from tests.transfer.test_any_to_any import Moves, moves, world_of
from tests.transfer.worlds import Laid, kept_by, save_in_turn

RULES = [ReadRule(), ReadRule(64, 32), ReadRule(4096, 100, in_spans=True), ReadRule(1, 0, True)]


@given(moves=moves(), rule=st.sampled_from(RULES))
@settings(max_examples=examples(60), suppress_health_check=list(HealthCheck))  # pyright: ignore[reportArgumentType]
def test_any_layouts_cost_is_that_of_its_plan(moves: Moves, rule: ReadRule) -> None:
    sources = {key: Laid(whole, source) for key, (whole, source, _) in moves.items()}
    targets = {key: target for key, (_, _, target) in moves.items()}
    with distant_memory() as storage, patch.object(ReadRule, "of", lambda _: rule):
        save_in_turn(lambda rank: kept_by(rank, sources), storage, world_of(sources), file_count=2)
        opened = open_committed(storage)
        planner = CostPlanner(opened, threads=1)
        for rank in sorted({rank for target in targets.values() for rank in target.ranks}):
            boxes = [
                (opened.manifest.tensor(key), box)
                for key, target in targets.items()
                for box in target.boxes_of(rank)
            ]
            wants = [
                Want(record, box, np.empty(box.shape, BIT_DTYPES[itemsize(record.dtype)]))
                for record, box in boxes
            ]
            plans = list(plan_load(opened, wants, threads=1))
            found = planner.ranges_of(kinds_of(boxes))
            assert sorted(found) == sorted(plan.index for plan in plans)
            for plan in plans:
                one = found[plan.index]
                pairs = list(zip(one.starts.tolist(), one.stops.tolist(), strict=True))
                assert sorted(pairs) == sorted((r.start, r.stop) for r in plan.reads)
                assert one.nbytes == plan.nbytes
            reads = [read for plan in plans for read in plan.reads]
            longest = [r.stop - r.start for r in reads if isinstance(r, WindowRead | SpanRead)]
            cost = cost_of(opened, boxes, threads=1)
            assert cost.nbytes_wanted == sum(want.array.nbytes for want in wants)
            assert (cost.requests, cost.files) == (len(reads), len(plans))
            assert cost.scratch_nbytes == max(longest, default=0)

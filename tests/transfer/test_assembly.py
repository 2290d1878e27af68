"""Do windows fill what reads want, in whatever order they come?"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
from hypothesis import HealthCheck, given, settings, strategies as st

from shardkeep.manifest import header
from shardkeep.plan.reads import WindowRead
from shardkeep.plan.sharing import windows_of
from shardkeep.testing.example_counts import examples
from shardkeep.transfer import assembly, filling, write
from shardkeep.transfer.assembly import Assembly
from shardkeep.transfer.load import FilePlan, ReadRule, Want, plan_load
from shardkeep.transfer.opened import Opened
from shardkeep.transfer.shared_fill import jobs_of
from tests.transfer.test_any_to_any import Moves, assert_comes_back, moves, world_of
from tests.transfer.worlds import Laid, kept_by, memory, save_in_turn

BLOCK = 16


@given(moves=moves(), dice=st.randoms(use_true_random=False), reverse=st.booleans())
@settings(max_examples=examples(60), suppress_health_check=list(HealthCheck))  # pyright: ignore[reportArgumentType]
def test_windows_fill_all_targets_in_any_order(moves: Moves, dice: Random, reverse: bool) -> None:
    sources = {key: Laid(whole, source) for key, (whole, source, _) in moves.items()}

    def fill(
        opened: Opened, wants: Sequence[Want], *, more: Sequence[FilePlan], **_options: Any
    ) -> int:
        return fill_in_any_order(opened, wants, more, dice)

    with (
        memory() as storage,
        patch.object(write, "BLOCK_NBYTES", BLOCK),
        patch.object(header, "MIN_BLOCK_NBYTES", BLOCK),
        patch.object(assembly, "_takes_parts", dice.choice([assembly._takes_parts, _never])),
    ):
        save_in_turn(lambda rank: kept_by(rank, sources), storage, world_of(sources), file_count=2)
        with patch.object(filling, "fill", fill):
            assert_comes_back(storage, moves, reverse=reverse)


def fill_in_any_order(
    opened: Opened, wants: Sequence[Want], scattered: Sequence[FilePlan], dice: Random
) -> int:
    rule = ReadRule(64, dice.choice([0, 32]), in_spans=True)
    jobs = jobs_of(plan_load(opened, wants, threads=1, rule=rule), scattered)
    filled = Assembly(jobs)
    stripe = BLOCK * dice.randrange(1, 9)
    windows = [
        window
        for index, job in jobs.items()
        for window in windows_of(
            index, filled.spans(index), origin=job.file.data_start, stripe_nbytes=stripe
        )
    ]
    dice.shuffle(windows)
    for window in windows:
        name = opened.manifest.file_name(window.file)
        places = filled.memory_of(window) if dice.random() < 0.5 else None
        if places is not None:
            assert filled.stands_alone(window)
            opened.storage.read_into(name, window.start, places)
        else:
            data = bytearray(window.nbytes)
            opened.storage.read_into(name, window.start, [data])
            filled.take(window, np.frombuffer(data, np.uint8))
            data[:] = b"\xff" * len(data)
    return sum(window.nbytes for window in windows)


def _never(_job: object, read: object) -> bool:
    """As if items lay across two windows."""
    return not isinstance(read, WindowRead)

"""Do windows fill what reads want, in whatever order they come?"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
from hypothesis import HealthCheck, given, settings, strategies as st

from shardkeep.manifest import header
from shardkeep.plan.sharing import Window, windows_of
from shardkeep.testing.example_counts import examples
from shardkeep.transfer import columns, filling, write
from shardkeep.transfer.assembly import Assembly
from shardkeep.transfer.load import FilePlan, ReadRule, Want, plan_load
from shardkeep.transfer.moving import copy_runs
from shardkeep.transfer.opened import Opened
from shardkeep.transfer.read import Array
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
        patch.object(columns, "_MIN_RUN_NBYTES", dice.choice([1, 8, 64])),
        patch.object(columns, "_MIN_COPY_NBYTES", dice.choice([0, 8])),
    ):
        save_in_turn(lambda rank: kept_by(rank, sources), storage, world_of(sources), file_count=2)
        with patch.object(filling, "fill", fill):
            assert_comes_back(storage, moves, reverse=reverse)


def fill_in_any_order(
    opened: Opened, wants: Sequence[Want], scattered: Sequence[FilePlan], dice: Random
) -> int:
    rule = ReadRule(64, dice.choice([0, 32]), in_spans=True)
    jobs = jobs_of(plan_load(opened, wants, threads=1, rule=rule), scattered)
    assembly = Assembly(jobs)
    stripe = BLOCK * dice.randrange(1, 9)
    windows = [
        window
        for index, job in jobs.items()
        for window in windows_of(
            index, assembly.spans(index), origin=job.file.data_start, stripe_nbytes=stripe
        )
    ]
    dice.shuffle(windows)
    for window in windows:
        name = opened.manifest.file_name(window.file)
        places = assembly.memory_of(window) if dice.random() < 0.5 else None
        if places is not None:
            assert assembly.stands_alone(window)
            opened.storage.read_into(name, window.start, places)
        else:
            data = bytearray(window.nbytes)
            opened.storage.read_into(name, window.start, [data])
            take(assembly, window, np.frombuffer(data, np.uint8), dice)
            data[:] = b"\xff" * len(data)
    return sum(window.nbytes for window in windows)


def take(assembly: Assembly, window: Window, data: Array, dice: Random) -> None:
    """As it is done with a window at hand, or with one that another process holds."""
    runs = assembly.places_of(window) if dice.random() < 0.5 else None
    if runs is None:
        assembly.take(window, data)
        return
    assert assembly.stands_alone(window)
    for some in runs:
        copy_runs(some, data, window.start)

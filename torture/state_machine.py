"""Does a run keep its word through any sequence of saves, crashes, damages and restores?

Hypothesis draws the sequence; a dict says what must be there. One path is saved from ranks in any
layout and loaded into any other; a run of steps is saved, broken off, damaged, tidied, restored.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from functools import partial
from multiprocessing import get_context

from hypothesis import HealthCheck, Phase, Verbosity, seed as seeded, settings
from hypothesis.stateful import run_state_machine_as_test

from torture.campaign import Say, Scale, Tally, replay
from torture.kept_runs import KeptRuns

_SIZES = {"short": (200, 50), "long": (1_000, 500)}
"""Sequences, and steps in each."""
_BATCH = 5


class StateMachine:
    """The campaign."""

    name = "state-machine"
    promise = "After any sequence of saves, crashes and damages, what a dict says is what is there."

    def run(self, scale: Scale, seed: int, say: Say, case: str | None = None) -> Tally:
        tally = Tally(self.name, seed)
        sequences, steps = _SIZES[scale]
        if case is not None:
            batch, _, steps_of_case = case.partition(":")
            tally.cases = _BATCH
            wrong = run_batch(seed, int(steps_of_case or steps), True, int(batch))[1]
            tally.violations += [wrong] if wrong else []
            return tally
        made = 0
        for batch, (count, wrong) in enumerate(_in_processes(seed, steps, sequences // _BATCH)):
            tally.cases += _BATCH
            made += count
            if wrong:
                told = replay(self.name, seed, f"{batch}:{steps}")
                tally.violations.append(f"{wrong}  {told}")
            if batch % 10 == 9:
                say(f"{tally.cases} sequences, {len(tally.violations)} violations")
        tally.facts["steps"] = made
        return tally


def run_batch(seed: int, steps: int, shrink: bool, batch: int) -> tuple[int, str]:
    """How many steps were made, and what went wrong; with `shrink`, told in the fewest steps."""
    machine = seeded(seed * 1_000_003 + batch)(type("Kept", (KeptRuns,), {}))
    phases = (Phase.generate, Phase.shrink) if shrink else (Phase.generate,)
    said = io.StringIO()
    KeptRuns.steps_made = 0
    try:
        with redirect_stdout(sys.stdout if shrink else said):
            run_state_machine_as_test(machine, settings=sized(_BATCH, steps, phases))
    except Exception as error:
        return KeptRuns.steps_made, _told(error)
    return KeptRuns.steps_made, ""


def _told(error: Exception) -> str:
    """What went wrong and where, in a line."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    said = str(error).splitlines()
    return f"{type(error).__name__} in {where.name}: {said[0] if said else where.line}"


def sized(sequences: int, steps: int, phases: tuple[Phase, ...]) -> settings:
    """So many sequences of so many steps; nothing is kept from run to run."""
    return settings(
        max_examples=sequences,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        phases=phases,
        verbosity=Verbosity.normal,
        print_blob=False,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


def _in_processes(seed: int, steps: int, batches: int) -> Iterator[tuple[int, str]]:
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("fork")) as pool:
        yield from pool.map(partial(run_batch, seed, steps, False), range(batches))

"""Which checkpoint of a run is restored? One rank looks, and all hear the same answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from shardkeep.errors import CorruptError, InvalidError, NotFoundError
from shardkeep.plan.retention import Best, ranked
from shardkeep.storage.shelf import LocalShelf
from shardkeep.transfer.council import Council
from shardkeep.transfer.steps import StepRecord, read_steps

OnDamage = Literal["raise", "fallback"]


@dataclass(frozen=True, slots=True)
class Wish:
    """What the caller of a restore asks for; the same on all ranks."""

    step: int | Literal["latest", "best"] | None
    on_damage: OnDamage
    tried: tuple[int, ...] = ()
    """Steps whose load has failed."""


class Choice(msgspec.Struct, frozen=True):
    """The step to load; None if there is no checkpoint at all."""

    step: int | None
    newer: tuple[int, ...] = ()
    """Steps beyond it, which a run that goes on from it will replace."""
    gives_up: bool = False
    """The load failed for a reason that no other step would cure."""
    warnings: tuple[str, ...] = ()


def agree_on_step(
    council: Council, shelf: LocalShelf, wish: Wish, error: Exception | None, best: Best | None
) -> Choice:
    """The chair's choice, heard by all. `error` is what the load of the last choice raised."""
    try:
        council.report("choose", b"corrupt" if isinstance(error, CorruptError) else b"")
        if council.me == council.chair:
            is_damaged = b"corrupt" in council.collect("choose").values()
            records = read_steps(shelf)
            choice = _Chooser(records, wish, best, str(error or "")).choose(is_damaged)
            council.announce("choose", msgspec.json.encode(choice))
        found = msgspec.json.decode(council.hear("choose"), type=Choice)
    except BaseException as caught:
        council.fail("restore", caught, undone=True)
        council.leave(done=False)
        raise
    council.leave(done=True)
    return found


def best_step(records: Sequence[StepRecord], best: Best | None) -> int | None:
    """The committed step with the best metric."""
    if best is None:
        raise InvalidError("the best step is known only with keep_best=(metric, 'min' or 'max', n)")
    known = [one.as_saved for one in records if one.condition == "committed"]
    order = ranked(known, *best[:2])
    return order[0] if order else None


class _Chooser:
    def __init__(
        self, records: Sequence[StepRecord], wish: Wish, best: Best | None, error: str
    ) -> None:
        # Never committed: as if it were not there.
        self._records = [one for one in records if one.condition != "half-written"]
        self._half_written = [one.step for one in records if one.condition == "half-written"]
        self._wish = wish
        self._best = best
        self._error = error

    def choose(self, is_damaged: bool) -> Choice:
        tried = self._wish.tried
        if tried and not is_damaged:
            # Not the bytes: the state does not fit, unless the checkpoint went away meanwhile.
            last = self._find(tried[-1])
            if last is not None and last.condition == "committed":
                return Choice(last.step, gives_up=True)
        if self._wish.step in (None, "latest"):
            return self._newest(set(tried) if is_damaged else set())
        if tried and is_damaged:
            return Choice(tried[-1], gives_up=True)
        return self._named()

    def _named(self) -> Choice:
        step = self._wish.step
        if step == "best":
            step = best_step(self._records, self._best)
            if step is None:
                raise NotFoundError("no checkpoint has the metric that keep_best ranks by")
        if not isinstance(step, int) or isinstance(step, bool):
            raise InvalidError(f"step is a number, 'latest', 'best' or None, got {step!r}")
        found = self._find(step)
        if found is None:
            raise NotFoundError(self._not_there(step))
        if found.condition == "damaged":
            raise CorruptError(f"step {step} is damaged: {found.problem}")
        return self._choice(step, [])

    def _not_there(self, step: int) -> str:
        if step in self._half_written:
            return f"step {step} was never completed: its save was broken off, or is under way"
        steps = [one.step for one in self._records]
        return f"there is no step {step}; there are {steps[-8:] if steps else 'none'}"

    def _newest(self, damaged: set[int]) -> Choice:
        warnings: list[str] = []
        for record in reversed(self._records):
            if record.condition == "committed" and record.step not in damaged:
                return self._choice(record.step, warnings)
            problem = record.problem or self._error
            if self._wish.on_damage == "raise":
                raise CorruptError(
                    f"step {record.step} is damaged: {problem}\nNothing older was tried; pass "
                    "on_damage='fallback' to take the newest checkpoint that is not"
                )
            warnings.append(f"step {record.step} is damaged and was passed over: {problem}")
        if warnings:
            raise CorruptError("no checkpoint of the run is whole:\n" + "\n".join(warnings))
        if self._wish.step == "latest":
            raise NotFoundError("the run has no checkpoint yet")
        return Choice(None)

    def _choice(self, step: int, warnings: list[str]) -> Choice:
        newer = tuple(one.step for one in self._records if one.step > step)
        if newer and not warnings:
            warnings = [
                f"going on from step {step}; {len(newer)} newer checkpoints ({newer[0]} to "
                f"{newer[-1]}) stay until a save at the same step replaces them"
            ]
        return Choice(step, newer, warnings=tuple(warnings))

    def _find(self, step: int) -> StepRecord | None:
        return next((one for one in self._records if one.step == step), None)

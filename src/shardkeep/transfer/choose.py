"""Which checkpoint of a run is restored? One rank looks, and all hear the same answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec

from shardkeep.errors import CorruptError, InvalidError, NotFoundError, VersionError
from shardkeep.plan.retention import Best, ranked
from shardkeep.storage.shelf import Shelf
from shardkeep.transfer.council import Council
from shardkeep.transfer.steps import StepRecord, current, read_steps

OnDamage = Literal["raise", "fallback"]


@dataclass(frozen=True, slots=True)
class Wish:
    """What the caller of a restore asks for, the same on all ranks, and what came of it so far."""

    step: int | Literal["latest", "best"] | None
    on_damage: OnDamage
    tried: dict[int, Exception] = field(default_factory=dict[int, Exception])
    """What the load of a step has raised on this rank, in order."""

    def __post_init__(self) -> None:
        if self.on_damage not in ("raise", "fallback"):
            raise InvalidError(f"on_damage is 'raise' or 'fallback', got {self.on_damage!r}")

    def after(self, step: int, error: Exception) -> Wish:
        """The wish when this load has failed, too."""
        return replace(self, tried={**self.tried, step: error})

    @property
    def last_error(self) -> Exception | None:
        return next(reversed(self.tried.values()), None)

    @property
    def takes_any(self) -> bool:
        return self.step is None or self.step == "latest"


class Choice(msgspec.Struct, frozen=True):
    """The step to load; None if there is no checkpoint at all."""

    step: int | None
    newer: dict[int, str] = {}
    """Steps beyond it and their save ids: a run that goes on from it leaves them behind."""
    gives_up: bool = False
    """The load failed for a reason that no other step would cure."""
    warnings: tuple[str, ...] = ()


def agree_on_step(council: Council, shelf: Shelf, wish: Wish, best: Best | None) -> Choice:
    """The chair's choice, heard by all."""
    try:
        council.report("choose", outcome_of(wish.last_error).encode())
        if council.me == council.chair:
            outcomes = {note.decode() for note in council.collect("choose").values()}
            choice = Chooser(read_steps(shelf), wish, best).choose(outcomes)
            council.announce("choose", msgspec.json.encode(choice))
        found = msgspec.json.decode(council.hear("choose"), type=Choice)
    except BaseException as caught:
        council.fail("restore", caught, undone=True)
        council.leave(done=False)
        raise
    council.leave(done=True)
    return found


def outcome_of(error: Exception | None) -> str:
    """What a load came to on one rank."""
    if isinstance(error, CorruptError):
        return "damaged"
    if isinstance(error, NotFoundError):
        return "missing"
    return "none" if error is None else "unfit"


def best_step(records: Sequence[StepRecord], best: Best | None) -> int | None:
    """The committed step with the best metric."""
    if best is None:
        raise InvalidError("the best step is known only with keep_best=(metric, 'min' or 'max', n)")
    known = [one.as_saved for one in records if one.condition == "committed"]
    order = ranked(known, *best[:2])
    return order[0] if order else None


class Chooser:
    """What follows from the steps that there are and from what is wished."""

    def __init__(self, records: Sequence[StepRecord], wish: Wish, best: Best | None) -> None:
        # Never committed: as if it were not there.
        self._records = [one for one in records if one.condition != "half-written"]
        self._half_written = [one.step for one in records if one.condition == "half-written"]
        self._wish = wish
        self._best = best

    def choose(self, outcomes: set[str]) -> Choice:
        """The step; `outcomes` are what the last load came to on the ranks."""
        last = next(reversed(self._wish.tried), None)
        if last is not None and self._is_in_vain(last, outcomes):
            return Choice(last, gives_up=True)
        return self._newest() if self._wish.takes_any else self._named()

    def _is_in_vain(self, last: int, outcomes: set[str]) -> bool:
        """Whether the load has failed for a reason that no other step would cure."""
        if "unfit" in outcomes:
            return True
        if "damaged" in outcomes:
            return False
        # What is missing is a part of the state, unless the checkpoint went away meanwhile.
        found = self._find(last)
        return found is not None and found.condition == "committed"

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
        _require_known(found)
        problem = found.problem or self._wish.tried.get(step)
        if problem:
            raise CorruptError(f"step {step} is damaged: {problem}")
        return self._choice(step, [])

    def _not_there(self, step: int) -> str:
        if step in self._half_written:
            return f"step {step} was never completed: its save was broken off, or is under way"
        steps = [one.step for one in self._records]
        return f"there is no step {step}; there are {steps[-8:] if steps else 'none'}"

    def _newest(self) -> Choice:
        warnings: list[str] = []
        for record in reversed(current(self._records)):
            _require_known(record)
            problem = record.problem or self._wish.tried.get(record.step)
            if not problem:
                return self._choice(record.step, warnings)
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
        newer = {one.step: one.save_id for one in self._records if one.step > step}
        if newer and not self._wish.takes_any:
            warnings = [
                f"going on from step {step}; newer checkpoints ({min(newer)} to {max(newer)}) are "
                "left behind: they stay until a save at the same step replaces them"
            ]
        return Choice(step, newer, warnings=tuple(warnings))

    def _find(self, step: int) -> StepRecord | None:
        return next((one for one in self._records if one.step == step), None)


def _require_known(record: StepRecord) -> None:
    """It is whole, so that going back behind it is no fallback: raise."""
    if record.condition == "unknown":
        raise VersionError(
            f"step {record.step} cannot be read: {record.problem}\nUpdate shardkeep, or restore an "
            "older step by its number"
        )

"""Which checkpoint does a run go on from, when the one that was chosen may not load?"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from shardkeep.errors import DeadlineError
from shardkeep.transfer.choose import Choice, Wish
from shardkeep.transfer.restore import LoadReport
from shardkeep.transfer.tiered_choice import Found

_log = logging.getLogger("shardkeep")


@dataclass(frozen=True, slots=True)
class Restored:
    """The step that a run goes on from."""

    step: int
    newer: dict[int, str]
    """Steps beyond it, which the run leaves behind, and their save ids."""
    report: LoadReport


def load_chosen(
    wish: Wish,
    choose: Callable[[Wish], Found],
    load: Callable[[int, Found], LoadReport],
    *,
    is_chair: bool,
) -> Restored | None:
    """The first choice that loads; None if there is no checkpoint at all. SPMD.

    The chair warns of those that were passed over, once of each.
    """
    said = set[str]()
    while True:
        found = choose(wish)
        choice = found.choice
        if is_chair:
            _warn(choice, said)
        if choice.step is None:
            return None
        if choice.gives_up and wish.last_error is not None:
            raise wish.last_error
        try:
            report = load(choice.step, found)
        except DeadlineError:
            raise
        except Exception as error:
            # Another rank may have failed otherwise: what follows, they find out together.
            wish = wish.after(choice.step, error)
            continue
        return Restored(choice.step, choice.newer, report)


def _warn(choice: Choice, said: set[str]) -> None:
    for text in choice.warnings:
        if text not in said:
            _log.warning("%s", text)
        said.add(text)

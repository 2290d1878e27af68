"""Which saves of a run are under way, and whose failure has nobody been told of?"""

from __future__ import annotations

from shardkeep.transfer.background import Handle
from shardkeep.transfer.saving import SaveResult


class UnderWay:
    """The saves in the background that a run has begun and has not waited for."""

    def __init__(self) -> None:
        self._saves: list[tuple[int, Handle[SaveResult]]] = []

    def add(self, step: int, handle: Handle[SaveResult]) -> None:
        """One more. Those that are committed by now are forgotten."""
        kept = [(n, h) for n, h in self._saves if not h.done() or h.has_failed()]
        # A new list: the end of a save looks through the old one, in the background.
        self._saves = [*kept, (step, handle)]

    def find(self, step: int) -> Handle[SaveResult] | None:
        """The save of a step, as long as it is known."""
        return next((handle for number, handle in self._saves if number == step), None)

    @property
    def steps(self) -> list[int]:
        """Those whose saves are not over."""
        return [step for step, handle in self._saves if not handle.done()]

    def wait(self) -> None:
        """Return when all are over; raises the error that nobody has seen yet."""
        saves, self._saves = self._saves, []
        for _, handle in saves:
            handle.wait()
        errors = [error for _, handle in saves if (error := handle.unseen_error()) is not None]
        if errors:
            for later in errors[1:]:
                errors[0].add_note(f"A later save failed, too: {later}")
            raise errors[0]

"""How is a state put aside for a save in the background, and memory for that made ready?"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

from shardkeep.errors import InvalidError
from shardkeep.state.fresh_pages import populate
from shardkeep.state.frozen import freezable_spans, frozen_spans
from shardkeep.state.huge_pages import Span, join_pages
from shardkeep.state.keeping import KeptState, keep_state
from shardkeep.state.staging import Snapshot, Stager
from shardkeep.transfer.background import stand_back

SnapshotKind = Literal["copy", "fork"]

_stager = Stager()


def check_kind(snapshot: str) -> None:
    """InvalidError for a word that is no kind of snapshot."""
    if snapshot not in ("copy", "fork"):
        raise InvalidError(f"snapshot is 'copy' or 'fork', got {snapshot!r}")


def take_snapshot(state: Any, kind: SnapshotKind) -> tuple[KeptState, Snapshot]:
    """The state in memory of its own, which nobody else changes."""
    kept = keep_state(state)
    take = _stager.freeze if kind == "fork" else _stager.copy
    snapshot = take(kept.memory)
    return replace(kept, memory=snapshot.tree), snapshot


def prepare_snapshot(state: Any, kind: SnapshotKind) -> None:
    """Have memory ready for a snapshot of `state`. Returns at once; a thread does the rest."""
    check_kind(kind)
    memory = keep_state(state).memory
    if kind == "fork":
        _prepare_fork(freezable_spans(memory))
        return
    buffers = _stager.reserve(memory)

    def act() -> None:
        for buffer in buffers:
            populate(buffer)

    _prepare(act)


def prepare_next_fork(kept: KeptState) -> None:
    """Have memory that was frozen ready for the next fork. Returns at once."""
    _prepare_fork(frozen_spans(kept.memory))


def _prepare_fork(spans: Sequence[Span]) -> None:
    if spans:
        _prepare(lambda: join_pages(spans))


def _prepare(act: Callable[[], None]) -> None:
    def run() -> None:
        stand_back()
        act()

    # A daemon: nobody waits for it at the interpreter's end.
    threading.Thread(target=run, name="shardkeep-prepare", daemon=True).start()

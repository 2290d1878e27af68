"""Where in its save is a rank struck? At a point that has a name, by a patch in its process."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from shardkeep.storage.local_sink import LocalSink
from shardkeep.transfer import save, upload
from shardkeep.transfer.council import StoreCouncil
from shardkeep.transfer.pump import Pump
from shardkeep.transfer.tiers import Tiers


def _before(act: Callable[..., Any], strike: Callable[[], None]) -> Callable[..., Any]:
    def struck(*args: Any, **kwargs: Any) -> Any:
        strike()
        return act(*args, **kwargs)

    return struck


def _after(act: Callable[..., Any], strike: Callable[[], None]) -> Callable[..., Any]:
    def struck(*args: Any, **kwargs: Any) -> Any:
        made = act(*args, **kwargs)
        strike()
        return made

    return struck


def _after_report(phase: str) -> Callable[..., Callable[..., Any]]:
    def wrap(act: Callable[..., Any], strike: Callable[[], None]) -> Callable[..., Any]:
        def struck(self: StoreCouncil, said: str, note: bytes, **how: Any) -> None:
            act(self, said, note, **how)
            if said == phase:
                strike()

        return struck

    return wrap


_Point = tuple[Any, str, Callable[..., Callable[..., Any]]]
POINTS: dict[str, _Point] = {
    "before the plan": (save, "SaveView", _before),
    "after its plan": (StoreCouncil, "report", _after_report("plan")),
    "before the write": (save, "write_files", _before),
    "in the write": (LocalSink, "finish", _before),
    "after the write": (save, "write_files", _after),
    "after its report": (StoreCouncil, "report", _after_report("write")),
    "before it leaves": (StoreCouncil, "leave", _before),
}
"""Points of every rank."""

CHAIR_POINTS: dict[str, _Point] = {
    "before the commit": (save, "commit", _before),
    "after the commit": (save, "commit", _after),
    "after the announcement": (save, "write_report", _before),
}


OTHER_HOST_POINTS: dict[str, _Point] = {
    "before the manifest is on its host": (save._Save, "_keep_manifest", _before),
}
"""Points of the first rank of a host that the chair is not on."""

SPREAD_POINTS: dict[str, _Point] = {
    "before the copies": (Tiers, "_copy_to_peers", _before),
    "in the copies": (Pump, "_finish", _before),
    "after the copies": (Tiers, "_copy_to_peers", _after),
    "after its upload": (upload, "copy_files", _after),
    "after the upload": (upload.Upload, "run", _after),
}
"""Points of every rank, when a step goes from the hosts' disks to peers and to the slow tier."""

UPLOAD_CHAIR_POINTS: dict[str, _Point] = {
    "before the upload's commit": (upload, "commit", _before),
    "after the upload's commit": (upload, "commit", _after),
}


@contextmanager
def striking(point: str, strike: Callable[[], None]) -> Generator[None]:
    """`strike` is called when this process comes to the point, for the first time."""
    tables = (POINTS, CHAIR_POINTS, OTHER_HOST_POINTS, SPREAD_POINTS, UPLOAD_CHAIR_POINTS)
    owner, name, wrap = next(table[point] for table in tables if point in table)
    done: list[bool] = []

    def once() -> None:
        if not done:
            done.append(True)
            strike()

    with patch.object(owner, name, wrap(getattr(owner, name), once)):
        yield

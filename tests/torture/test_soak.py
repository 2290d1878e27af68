"""Does anything grow while a job saves, and would it be found out?"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

from torture.soak import Soak

_kept: list[bytes] = []


def test_nothing_grows_while_a_job_saves_and_dies() -> None:
    tally = Soak().run("short", 0, print)
    assert tally.violations == []
    assert tally.cases > 10


def _leak(name: str, store: Any, root: Path) -> None:
    # Also more than what grows unseen in a process that has inherited a gigabyte from its parent.
    _kept.append(b"x" * 2**24)
    os.open(os.devnull, os.O_RDONLY)
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    for part in "abc":
        store.set(f"leak/{name}{part}", "")
    (root / f"leak-{name}").write_bytes(bytes(2**19))


def test_everything_that_leaks_is_found() -> None:
    violations = Soak(_leak).run("short", 0, print).violations
    for quantity in ("memory", "open files", "threads", "keys", "disk"):
        assert [one for one in violations if f"{quantity} grew from" in one], quantity

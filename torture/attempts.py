"""What becomes of one save by four processes, one of which is struck?

Each says what came of it, and the folder is looked at, cleaned up and saved to again.
"""

from __future__ import annotations

import json
import mmap
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import shardkeep as sk
from shardkeep.transfer import planning
from shardkeep.transfer.council import StoreCouncil
from torture.processes import connect, fork, kill, read_log
from torture.tracing import traced
from torture.versions import prune_all, save_version, version_of

SIZE = 4
SAVE_ID = "0123456789abcdef"
PATIENCE = 60.0


@dataclass(frozen=True)
class Kind:
    """What is saved how, and who is struck."""

    is_overwrite: bool
    is_async: bool
    victim: int

    @property
    def name(self) -> str:
        over = "overwrite" if self.is_overwrite else "fresh"
        return f"{over}:{'async' if self.is_async else 'sync'}:{self.victim}"

    @property
    def old(self) -> int:
        """The version that is there before."""
        return int(self.is_overwrite)


class Attempt:
    """A save of version 2. The folder's parent need not be there."""

    def __init__(self, kind: Kind, path: Path, port: int, *, timeout: float, items: int) -> None:
        self.kind = kind
        self.path = path
        self._port = port
        self._timeout = timeout
        self._items = items
        self._go = mmap.mmap(-1, 1)
        self._trouble = os.memfd_create("log")
        self._logs = [os.memfd_create("log") for _ in range(SIZE)]
        self._tracing = ExitStack()

    def prepare(self) -> None:
        """Save version 1 if there is to be one."""
        self.path.parent.mkdir(exist_ok=True)
        if self.kind.is_overwrite:
            save_version(1, self.path, None, size=1, items=self._items)

    def start(self, options: Sequence[str] | None = None) -> None:
        """Begin; with options, the victim is traced from its first call on."""
        self.pids = [
            fork(lambda rank=rank: self._be_rank(rank), self._trouble) for rank in range(SIZE)
        ]
        if options is not None:
            self._tracing.enter_context(traced(self.pids[self.kind.victim], *options))
        self._go[0] = 1
        self._left = set(self.pids)
        self._deadline = time.monotonic() + PATIENCE

    def _be_rank(self, rank: int) -> None:
        store = connect(self._port)
        while not self._go[0]:
            time.sleep(0.001)
        council = StoreCouncil(
            store, range(SIZE), rank, topic=str(self.path), timeout=self._timeout
        )
        try:
            with patch.object(planning, "new_save_id", lambda: SAVE_ID):
                save_version(
                    2, self.path, council, size=SIZE, durable=True, is_async=self.kind.is_async,
                    items=self._items,
                )  # fmt: skip
            said: dict[str, Any] = {"kind": ""}
        except sk.ShardkeepError as error:
            said = {"kind": type(error).__name__, "text": str(error)}
        os.write(self._logs[rank], json.dumps(said).encode())

    def is_over(self) -> bool:
        """Whether all have ended, or it is too late."""
        self._left -= {pid for pid in self._left if os.waitpid(pid, os.WNOHANG)[0]}
        return not self._left or time.monotonic() > self._deadline

    def wait(self) -> None:
        """Return when it is over."""
        while not self.is_over():
            time.sleep(0.002)

    def said(self, rank: int) -> dict[str, Any] | None:
        """What came of a rank: its `kind` of error, empty for none, and the `text`."""
        text = read_log(self._logs[rank])
        return json.loads(text) if text else None

    @property
    def acks(self) -> list[int]:
        """Who was told that version 2 stands."""
        return [rank for rank in range(SIZE) if (self.said(rank) or {}).get("kind") == ""]

    def judge(self) -> str | None:
        """What is wrong with the folder; None if nothing is. Ends all processes."""
        try:
            return self._judge()
        except (sk.ShardkeepError, AssertionError) as error:
            return f"{type(error).__name__}: {error}".replace("\n", " ")
        finally:
            self._end()

    def _judge(self) -> str | None:
        if self._left:
            return f"{len(self._left)} processes wait for ever"
        if said := read_log(self._trouble):
            return said.splitlines()[-1]
        self.found = version_of(self.path)
        if self.found not in (self.kind.old, 2):
            return f"version {self.found} is there"
        if self.acks and self.found != 2:
            return f"version {self.found} is there, and ranks {self.acks} were told that 2 is"
        if self.path.exists():
            prune_all(self.path)
        return None

    def save_again(self) -> str | None:
        """What is wrong with a save that follows."""
        try:
            save_version(3, self.path, None, size=1, items=self._items)
            assert version_of(self.path) == 3
            prune_all(self.path)
        except (sk.ShardkeepError, AssertionError) as error:
            return f"the next save: {type(error).__name__}: {error}".replace("\n", " ")
        return None

    def _end(self) -> None:
        kill(list(self._left))
        for pid in self._left:
            os.waitpid(pid, 0)
        self._left = set[int]()
        self._tracing.close()

    def close(self) -> None:
        """Forget what was said."""
        for log in (self._trouble, *self._logs):
            os.close(log)

"""What do ranks do that wait for bytes of one that is gone? Real processes, which may die."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import shardkeep as sk
from shardkeep.storage import LocalStorage
from shardkeep.transfer import shared_fill
from torture.processes import c10d, connect, fork, kill, read_log, reap, serving, warm

SIZE = 3
TIMEOUT = 3.0


def _state(value: float) -> dict[str, Any]:
    return {f"w{n}": torch.full((500_000,), value + n) for n in range(6)}


class _Struck(LocalStorage):
    """Rank 2 is struck as it reads for others."""

    map = None  # type: ignore[assignment]
    reading = None  # type: ignore[assignment]
    number = 0

    def read_into(self, key: str, offset: int, buffers: Sequence[Any]) -> None:
        if self.number:
            os.kill(os.getpid(), self.number)
        super().read_into(key, offset, buffers)


def _be_rank(rank: int, port: int, path: Path, number: int, log: int) -> None:
    # Small ones: there is something to read for each rank.
    shared_fill.STRIPE_NBYTES = 2**20
    c10d.init_process_group("gloo", store=connect(port), rank=rank, world_size=SIZE)
    with _Struck(path) as storage:
        storage.number = number if rank == SIZE - 1 else 0
        start = time.monotonic()
        try:
            sk.load(storage, _state(0.0), timeout=TIMEOUT)
            said = "nothing"
        except sk.ShardkeepError as error:
            said = f"{type(error).__name__}: {error}"
    os.write(log, json.dumps([rank, said, time.monotonic() - start]).encode() + b"\n")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_ranks_that_wait_for_one_that_is_gone_raise_in_time_and_name_it(tmp_path, number):
    warm()
    sk.save(_state(1.0), tmp_path)
    log = os.memfd_create("log")
    with serving() as port:
        pids = [
            fork(lambda rank=rank: _be_rank(rank, port, tmp_path, number, log), log)
            for rank in range(SIZE)
        ]
        try:
            assert reap(pids[:-1], 60.0) == []
        finally:
            kill(pids[-1:])
            os.waitpid(pids[-1], 0)
    said = [json.loads(line) for line in read_log(log).splitlines()]
    os.close(log)
    assert sorted(rank for rank, _, _ in said) == [0, 1]
    for _, text, seconds in said:
        assert text.split(":")[0].endswith(("RankFailedError", "DeadlineError")), text
        assert "rank 2" in text
        assert seconds < TIMEOUT + 25

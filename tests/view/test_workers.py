"""Processes that share acts give what threads give, and a worker that fails costs nothing."""

import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from shardkeep.transfer.progress import Meter
from shardkeep.view.values import Stats
from shardkeep.view.workers import run_forked

COUNT = 300


def _square(number: int, meter: Meter) -> list[tuple[str, Stats]]:
    meter.add(10)
    return [(str(os.getpid()), Stats(count=number * number))]


def _forked(acts, done, workers=3):
    return run_forked(acts, list[tuple[str, Stats]], workers=workers, done=done)


def test_every_act_is_done_once_by_some_worker():
    told: list[int] = []
    found = _forked([partial(_square, number) for number in range(COUNT)], told.append)
    assert {number: one[0][1].count for number, one in found.items()} == {
        number: number * number for number in range(COUNT)
    }
    assert sum(told) == 10 * COUNT
    assert str(os.getpid()) not in {one[0][0] for one in found.values()}


def test_there_may_be_fewer_acts_than_workers():
    assert len(_forked([partial(_square, 0)], lambda nbytes: None)) == 1
    assert _forked([], lambda nbytes: None) == {}


@pytest.mark.parametrize(
    "fall", [lambda: 1 / 0, lambda: os.kill(os.getpid(), signal.SIGKILL)], ids=["raises", "dies"]
)
def test_what_a_worker_that_fails_has_taken_is_missing(fall):
    parent = os.getpid()

    def act(number: int, meter: Meter) -> list[tuple[str, Stats]]:
        if number == 7 and os.getpid() != parent:
            fall()
        return _square(number, meter)

    found = _forked([partial(act, number) for number in range(COUNT)], lambda nbytes: None)
    assert 7 not in found
    assert all(one[0][1].count == number * number for number, one in found.items())


def test_an_error_in_the_parent_ends_the_workers(tmp_path):
    def interrupt(nbytes: int) -> None:
        if len(list(tmp_path.iterdir())) == 3:
            raise KeyboardInterrupt("enough")

    def act(meter: Meter) -> list[tuple[str, Stats]]:
        (tmp_path / str(os.getpid())).touch()
        time.sleep(600)
        return []

    with pytest.raises(KeyboardInterrupt, match="enough"):
        _forked([act] * 3, interrupt)
    assert not [file for file in tmp_path.iterdir() if Path(f"/proc/{file.name}").exists()]

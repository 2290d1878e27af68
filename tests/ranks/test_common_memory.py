"""Do bytes get from one process to another through memory that both see?"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import numpy as np
import pytest

from shardkeep.ranks.common_memory import (
    CAN_SHARE,
    SLOT_NBYTES,
    CommonMemory,
    GoneError,
    Track,
    can_share,
    map_memory,
)

pytestmark = pytest.mark.skipif(not CAN_SHARE, reason="needs Linux and glibc 2.30")


def _nothing() -> None:
    """There is no reason to stop waiting."""


def _forked(act: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            act()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return pid


def _exit_code(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_another_process_takes_what_is_posted_in_order_and_says_so():
    mine, owner = CommonMemory(), os.getpid()
    Track(mine.memory, 0, owner).prepare()

    def take() -> None:
        memory = map_memory(owner, mine.fd, mine.word)
        assert memory is not None
        track = Track(memory, 0, owner)
        for number in range(300):
            place = track.await_posted(_nothing)
            assert memory[place : place + 1000].tolist() == [number % 251] * 1000
            track.say_taken()

    pid = _forked(take)
    track = Track(mine.memory, 0, pid)
    for number in range(300):
        place = mine.take_slot()
        mine.memory[place : place + 1000] = number % 251
        track.post(place)
        track.await_taken(_nothing)
        mine.give_back(place)
    assert _exit_code(pid) == 0


@pytest.mark.parametrize("waits_for", ["await_taken", "await_posted"])
def test_who_waits_for_a_process_that_was_killed_is_told(waits_for):
    mine = CommonMemory()
    pid = _forked(signal.pause)
    track = Track(mine.memory, 3, pid)
    track.prepare()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(GoneError, match="its process has ended"):
        getattr(track, waits_for)(_nothing)
    _exit_code(pid)


def test_what_a_process_posted_before_it_ended_is_still_taken():
    mine = CommonMemory()
    Track(mine.memory, 0, os.getpid()).prepare()
    pid = _forked(lambda: Track(mine.memory, 0, os.getpid()).post(5000))
    track = Track(mine.memory, 0, pid)
    assert _exit_code(pid) == 0
    assert track.await_posted(_nothing) == 5000
    with pytest.raises(GoneError, match="ended"):
        track.await_posted(_nothing)


def test_a_wait_ends_when_there_is_a_reason():
    mine = CommonMemory()
    track = Track(mine.memory, 0, os.getpid())
    track.prepare()

    def stop() -> None:
        raise TimeoutError("enough")

    with pytest.raises(TimeoutError, match="enough"):
        track.await_posted(stop)


def test_memory_is_mapped_only_if_it_is_what_was_meant(tmp_path):
    mine, other = CommonMemory(), CommonMemory()
    assert map_memory(os.getpid(), mine.fd, mine.word) is not None
    assert map_memory(os.getpid(), mine.fd, other.word) is None
    assert map_memory(os.getpid(), 10**6, mine.word) is None
    with open(tmp_path / "file", "w+b") as file:
        file.truncate(mine.memory.nbytes)
        assert map_memory(os.getpid(), file.fileno(), 0) is None


def test_memory_cannot_be_cut_off_by_its_owner():
    mine = CommonMemory()
    with pytest.raises(PermissionError, match="not permitted"):
        os.ftruncate(mine.fd, 4096)


def test_slots_are_distinct_and_their_pages_are_given_back():
    mine = CommonMemory()
    places = []
    while mine.has_room:
        places.append(mine.take_slot())
        mine.memory[places[-1] : places[-1] + SLOT_NBYTES] = 1
    assert np.diff(sorted(places)).min() == SLOT_NBYTES
    used = os.fstat(mine.fd).st_blocks * 512
    assert used > len(places) * SLOT_NBYTES
    for place in places:
        mine.give_back(place)
    mine.shrink()
    assert os.fstat(mine.fd).st_blocks * 512 < SLOT_NBYTES
    assert not mine.memory[places[0]]


@pytest.mark.parametrize("call", ["pidfd_open", "memfd_create"])
def test_where_a_call_is_refused_no_memory_is_shared(monkeypatch, call):
    def refused(*_: object) -> int:
        raise PermissionError(1, "Operation not permitted")

    assert can_share()
    monkeypatch.setattr(os, call, refused)
    assert not can_share()

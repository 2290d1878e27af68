"""Do all ranks act at the same decision, whoever is asked and whenever?

Ranks are threads with loops of their own pace over one real Store.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch.distributed as dist

from shardkeep.errors import DeadlineError, RankFailedError
from shardkeep.transfer import common_step
from shardkeep.transfer.common_step import SoloStep, StoreStep
from tests.transfer.worlds import new_store

Acts = list[tuple[int, list[str]]]


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common_step, "_POLL_SECONDS", 0.002)
    monkeypatch.setattr(common_step, "_WAIT_SECONDS", 0.0005)


class Watched:
    """A Store that counts the notes in it, and can be gone."""

    def __init__(self) -> None:
        self.store = new_store()
        self.empty = self.store.num_keys()
        self.is_gone = False

    def __getattr__(self, name: str) -> Any:
        if self.is_gone:
            raise RuntimeError("Broken pipe")
        return getattr(self.store, name)

    @property
    def notes(self) -> int:
        return self.store.num_keys() - self.empty


def step_of(
    store: Any, size: int, me: int, *, timeout: float = 30.0, look: Callable[[], str | None]
) -> StoreStep:
    return StoreStep(store, range(size), me, topic="t", timeout=timeout, look=look)


def nothing() -> None:
    return None


def run_ranks(size: int, act: Callable[[int], Any]) -> list[Any]:
    """What each rank returned, or raised."""
    found: list[Any] = [None] * size

    def work(rank: int) -> None:
        try:
            found[rank] = act(rank)
        except Exception as error:
            found[rank] = error

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a rank waits for ever"
    return found


class Loop:
    """A rank's training loop, at a pace of its own, which is asked at some of its steps."""

    def __init__(self, store: Any, size: int, me: int, seed: int, asks: Sequence[int]) -> None:
        self.dice = random.Random(f"{seed}/{me}")
        self.pending: list[str] = []
        self.asks = set(asks)
        self.me = me
        self.step = step_of(store, size, me, look=self.look)

    def look(self) -> str | None:
        return self.pending.pop() if self.pending else None

    def run(self, steps: int, barrier: threading.Barrier | None) -> Acts:
        acts: Acts = []
        for number in range(steps):
            if number in self.asks:
                self.pending.append(f"asked by {self.me} at {number}")
            time.sleep(self.dice.choice((0.0, 0.0, 0.001, 0.004)))
            reasons = self.step.decide()
            if reasons:
                acts.append((number, list(reasons)))
                if barrier is not None:
                    # A save is one: nobody goes on before all are there.
                    barrier.wait(30)
        self.step.close()
        return acts


@pytest.mark.parametrize("seed", range(8))
def test_ranks_that_drift_apart_act_together_and_leave_no_note(seed):
    dice = random.Random(seed)
    store, size, steps = Watched(), dice.choice((2, 3, 5)), 150
    asks = [[s for s in range(steps - 60) if dice.random() < 0.02] for _ in range(size)]
    asks[dice.randrange(size)].append(5)
    barrier = threading.Barrier(size) if dice.random() < 0.5 else None

    loops = [Loop(store, size, rank, seed, asks[rank]) for rank in range(size)]
    acts = run_ranks(size, lambda rank: loops[rank].run(steps, barrier))

    assert acts[0], "nobody acted"
    assert acts == [acts[0]] * size
    asked = {f"asked by {rank} at {s}" for rank in range(size) for s in asks[rank]}
    answered = [reason for _, reasons in acts[0] for reason in reasons]
    assert len(answered) == len(set(answered))
    assert set(answered) <= asked
    assert store.notes == 0


def test_two_that_ask_at_once_are_both_answered():
    store, size = Watched(), 3
    asked = threading.Barrier(size)

    def loop(rank: int) -> Acts:
        step = step_of(store, size, rank, look=nothing)
        asked.wait(30)
        if rank:
            step.ask(f"rank {rank}")
        acts: Acts = []
        while sum(len(reasons) for _, reasons in acts) < 2:
            time.sleep(0.001)
            reasons = step.decide()
            if reasons:
                acts.append((step._made, list(reasons)))
        step.close()
        return acts

    acts = run_ranks(size, loop)

    assert acts == [acts[0]] * size
    assert sorted(r for _, reasons in acts[0] for r in reasons) == ["rank 1", "rank 2"]
    assert store.notes == 0


def test_a_reason_that_several_ranks_have_is_named_once():
    store, size = Watched(), 3
    steps = [step_of(store, size, rank, look=nothing) for rank in range(size)]
    for step in steps:
        step.ask("SIGTERM")
    found = run_ranks(size, lambda rank: first_act(steps[rank]))
    assert [reasons for _, reasons in found] == [["SIGTERM"]] * size
    for step in steps:
        step.close()
    assert store.notes == 0


def first_act(step: StoreStep) -> tuple[int, list[str]]:
    while True:
        reasons = step.decide()
        if reasons:
            return step._made, list(reasons)
        time.sleep(0.001)


def test_a_rank_that_is_far_behind_is_waited_for():
    store = Watched()
    ahead, behind = (step_of(store, 2, rank, look=nothing) for rank in range(2))
    for _ in range(10):
        assert ahead.decide() == ()
    behind.ask("now")
    # The thread of the one ahead agrees at any moment, and then its loop is held at most there.
    found = run_ranks(2, lambda rank: first_act((ahead, behind)[rank]))
    assert found[0] == found[1]
    assert found[0][0] >= 11


def test_a_dead_rank_is_named_to_all(monkeypatch):
    store, size = Watched(), 3
    # Rank 2 never came, or has died.
    steps = [step_of(store, size, rank, timeout=0.3, look=nothing) for rank in range(2)]
    steps[1].ask("SIGTERM")
    for error in run_ranks(2, lambda rank: first_act(steps[rank])):
        assert isinstance(error, DeadlineError)
        assert "rank 2 of 3 did not come to a common step" in str(error)
    # It stays so, and the end is not kept waiting.
    with pytest.raises(DeadlineError, match="rank 2"):
        steps[0].decide()
    for step in steps:
        step.close()


def test_a_dead_chair_is_named():
    step = step_of(Watched(), 2, 1, timeout=0.2, look=nothing)
    step.ask("SIGTERM")
    with pytest.raises(DeadlineError, match="rank 0 named no common step"):
        first_act(step)
    step.close()


@pytest.mark.parametrize("closer", [0, 1])
def test_a_rank_that_is_done_keeps_nobody_waiting(closer):
    store = Watched()
    steps = [step_of(store, 2, rank, look=nothing) for rank in range(2)]
    other = steps[1 - closer]
    steps[closer].close()
    other.ask("too late")
    deadline = time.monotonic() + 30
    while other._agreed is None:
        assert other.decide() == ()
        assert time.monotonic() < deadline, "the note of the one that is done was not seen"
    assert [list(other.decide()) for _ in range(20)] == [[]] * 20
    other.close()
    assert store.notes == 0


def test_a_loop_that_ends_does_not_wait_for_a_dead_rank():
    store, size = Watched(), 3
    # Rank 2 never came, or has died.
    steps = [step_of(store, size, rank, timeout=100_000, look=nothing) for rank in range(2)]
    steps[1].ask("SIGTERM")
    while not all(step._holds for step in steps):
        time.sleep(0.001)

    assert run_ranks(2, lambda rank: steps[rank].close()) == [None, None]


@pytest.mark.parametrize("closer", [0, 1])
def test_a_loop_that_ends_while_a_rank_is_late_sets_the_others_free(closer):
    store, size = Watched(), 3
    steps = [step_of(store, size, rank, timeout=100_000, look=nothing) for rank in range(2)]
    steps[1 - closer].ask("now")
    while not all(step._holds for step in steps):
        time.sleep(0.001)
    steps[closer].close()
    late = step_of(store, size, 2, timeout=100_000, look=nothing)

    left = (steps[1 - closer], late)
    found = run_ranks(2, lambda rank: [list(left[rank].decide()) for _ in range(20)])

    assert found == [[[]] * 20] * 2
    for step in left:
        step.close()
    assert store.notes == 0


@pytest.mark.parametrize("seed", range(6))
def test_closing_while_asked_ends_on_all_ranks_and_leaves_no_note(seed):
    dice = random.Random(seed)
    store, size, steps = Watched(), 4, 12
    asks = [[dice.randrange(steps)] if dice.random() < 0.6 else [] for _ in range(size)]
    asks[dice.randrange(size)] = [steps - 1]

    loops = [Loop(store, size, rank, seed, asks[rank]) for rank in range(size)]
    acts = run_ranks(size, lambda rank: loops[rank].run(steps, None))

    assert acts == [acts[0]] * size
    assert store.notes == 0


def test_closing_twice_does_nothing():
    store = Watched()
    step = step_of(store, 1, 0, look=nothing)
    step.close()
    step.close()
    assert store.notes == 0


def test_a_store_that_is_gone_is_told_to_the_one_who_asks():
    store = Watched()
    step = step_of(store, 2, 1, look=nothing)
    store.is_gone = True
    assert [list(step.decide()) for _ in range(5)] == [[]] * 5
    step.ask("SIGTERM")
    with pytest.raises(RankFailedError, match=r"Store does not answer.*Broken pipe"):
        first_act(step)
    step.close()


def test_what_goes_wrong_while_looking_is_raised_by_the_next_decision():
    def look() -> str:
        raise ValueError("no clock")

    step = step_of(Watched(), 2, 0, look=look)
    with pytest.raises(ValueError, match="no clock"):
        first_act(step)
    step.close()


@pytest.fixture
def tcp_stores() -> list[Any]:
    c10d: Any = dist
    server = c10d.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    return [server, *(c10d.TCPStore("127.0.0.1", server.port, None, False) for _ in range(3))]


def test_it_works_over_tcp_too(tcp_stores):
    before = tcp_stores[0].num_keys()
    loops = [Loop(tcp_stores[rank], 4, rank, 1, [3, 60]) for rank in range(4)]
    acts = run_ranks(4, lambda rank: loops[rank].run(100, None))
    assert acts[0], "nobody acted"
    assert acts == [acts[0]] * 4
    assert tcp_stores[0].num_keys() == before


def test_a_single_process_acts_at_its_next_decision():
    step = SoloStep()
    assert step.decide() == []
    for reason in ("a", "b", "a"):
        step.ask(reason)
    assert step.decide() == ["a", "b"]
    assert step.decide() == []
    step.ask("a")
    step.close()
    assert step.decide() == []

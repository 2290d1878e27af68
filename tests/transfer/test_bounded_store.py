"""A Store that says nothing ends a wait, and is not asked again."""

from __future__ import annotations

import gc
import threading
import time
from typing import Any

import pytest
import torch.distributed

from shardkeep.errors import RankFailedError
from shardkeep.transfer import council
from shardkeep.transfer.bounded_store import BoundedStore, SilentStoreError, bounded
from shardkeep.transfer.council import StoreCouncil

c10d: Any = torch.distributed


class MuteStore:
    """Answers as a HashStore does, until it is told to be mute."""

    def __init__(self) -> None:
        self._store = c10d.HashStore()
        self.speaks = threading.Event()
        self.speaks.set()
        self.asked: list[str] = []

    def __getattr__(self, verb: str) -> Any:
        def ask(*args: Any) -> Any:
            self.asked.append(verb)
            self.speaks.wait()
            return getattr(self._store, verb)(*args)

        return ask


def test_answers_and_errors_come_through() -> None:
    store = BoundedStore(c10d.HashStore(), "here", lambda: 60.0)
    store.set("a", b"x")
    assert store.get("a") == b"x"
    assert store.add("n", 2) == 2
    assert store.check(["a"])
    assert store.multi_get(["a", "a"]) == [b"x", b"x"]
    assert store.delete_key("a")
    assert store.has_extended_api()
    with pytest.raises(TypeError, match="set"):
        store.set("a", 3)  # type: ignore[arg-type]
    assert not store.check(["a"])


def test_a_store_that_says_nothing_is_given_up_and_not_asked_again() -> None:
    inner: Any = MuteStore()
    store = BoundedStore(inner, "there:29500", lambda: 0.05)
    store.set("a", b"x")
    inner.speaks.clear()
    for _ in range(2):
        with pytest.raises(SilentStoreError, match=r"there:29500 said nothing for 0\.05 s"):
            store.get("a")
    assert inner.asked == ["set", "get"]
    inner.speaks.set()
    with pytest.raises(SilentStoreError, match="said nothing"):
        store.check(["a"])


def test_a_rank_whose_store_is_mute_raises_and_names_the_phase(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inner: Any = MuteStore()
    monkeypatch.setattr(
        council, "bounded", lambda store, left: BoundedStore(store, "there:29500", left)
    )
    ranks = StoreCouncil(inner, range(2), 1, topic="t", timeout=0.1)
    ranks.report("plan", b"x")
    inner.speaks.clear()
    with pytest.raises(RankFailedError, match=r"(?s)plan.*rank 1.*Store does not answer.*29500"):
        ranks.hear("plan")
    asked = len(inner.asked)
    ranks.fail("plan", ValueError("x"), undone=False)
    ranks.leave(done=False)
    assert len(inner.asked) == asked


def test_its_thread_ends_when_the_ranks_part() -> None:
    server = c10d.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    before = threading.active_count()
    for number in range(3):
        ranks = StoreCouncil(server, range(1), 0, topic=str(number), timeout=60.0)
        ranks.report("plan", b"x")
        assert ranks.collect("plan") == {0: b"x"}
        ranks.leave(done=True)
    deadline = time.monotonic() + 30
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.001)
    assert threading.active_count() == before


def test_its_thread_ends_with_it() -> None:
    store = BoundedStore(c10d.HashStore(), "here", lambda: 60.0)
    store.set("a", b"x")
    thread = store._thread
    assert thread is not None
    assert thread.is_alive()
    del store
    gc.collect()
    thread.join(30)
    assert not thread.is_alive()


def test_only_stores_of_other_processes_are_bounded() -> None:
    store = c10d.HashStore()
    assert bounded(store, lambda: 1.0) is store
    prefixed = c10d.PrefixStore("a", store)
    assert bounded(prefixed, lambda: 1.0) is prefixed
    server = c10d.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    asked = bounded(c10d.PrefixStore("a", c10d.PrefixStore("b", server)), lambda: 60.0)
    assert isinstance(asked, BoundedStore)
    asked.set("k", b"v")
    assert asked.get("k") == b"v"


def test_whoever_waits_in_vain_names_the_late_rank() -> None:
    store = c10d.HashStore()
    first, second = (StoreCouncil(store, range(3), r, topic="t", timeout=0.05) for r in (0, 1))
    first.report("write", b"x")
    second.report("write", b"x")
    with pytest.raises(council.DeadlineError, match=r"write: rank 2 of 3 did not report within"):
        second.hear("write")
    with pytest.raises(council.DeadlineError, match=r"agree: rank 0 has not answered within"):
        second.hear("agree")

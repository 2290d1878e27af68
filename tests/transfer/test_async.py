"""Does a save in the background keep what was there when it began, and tell when it fails?"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch

import shardkeep as sk
from shardkeep.errors import InvalidError
from shardkeep.state import Stager
from shardkeep.storage import MemoryStorage
from shardkeep.transfer import saving, snapshots
from shardkeep.transfer.background import Background, Handle
from tests.transfer.worlds import fresh_memory


class Gated(MemoryStorage):
    """A storage that lets nobody write before the gate is opened."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.gate = threading.Event()

    def create(self, key: str) -> Any:
        assert self.gate.wait(30)
        return super().create(key)


@pytest.fixture
def gated() -> Iterator[list[Gated]]:
    storages = [Gated(fresh_memory().location + f"-{number}") for number in range(3)]
    yield storages
    for storage in storages:
        storage.gate.set()
    saving.background.wait()


def test_changes_after_the_call_do_not_reach_the_checkpoint(gated: list[Gated]) -> None:
    w = torch.arange(1000.0)
    state: dict[str, Any] = {"w": w, "view": w[:10], "t": w.view(10, 100).t(), "n": [1]}
    handle = sk.save_async(state, gated[0])
    handle.staged()
    w.zero_()
    state["n"].append(2)
    gated[0].gate.set()
    result = handle.result(30)
    assert set(result.seconds) == {"stage", "plan", "write", "commit"}
    found = sk.load(gated[0])
    assert torch.equal(found["w"], torch.arange(1000.0))
    assert torch.equal(found["view"], torch.arange(10.0))
    assert torch.equal(found["t"], torch.arange(1000.0).view(10, 100).t())
    assert found["n"] == [1]
    assert handle.done()


def test_a_third_snapshot_waits_for_the_first(gated: list[Gated]) -> None:
    w = torch.zeros(100)
    first = sk.save_async({"w": w}, gated[0])
    w += 1
    second = sk.save_async({"w": w}, gated[1])
    w += 1
    begun = threading.Event()
    handles: list[Handle[Any]] = []

    def third() -> None:
        begun.set()
        handles.append(sk.save_async({"w": w}, gated[2]))

    thread = threading.Thread(target=third)
    thread.start()
    assert begun.wait(10)
    time.sleep(0.2)
    assert not handles
    gated[0].gate.set()
    thread.join(30)
    assert first.done()
    assert not second.done()
    for storage in gated:
        storage.gate.set()
    for number, (handle, storage) in enumerate(
        zip([first, second, handles[0]], gated, strict=True)
    ):
        handle.result(30)
        assert torch.equal(sk.load(storage)["w"], torch.full((100,), float(number)))


def test_a_failure_is_raised_by_the_result() -> None:
    storage = fresh_memory()
    sk.save({"a": 1}, storage)
    handle = sk.save_async({"a": 2}, storage)
    with pytest.raises(sk.ConflictError, match="holds a checkpoint already"):
        handle.result(30)
    # It was seen: the next call goes on.
    sk.save_async({"a": 2}, storage, overwrite=True).result(30)
    assert sk.load(storage) == {"a": 2}


def test_a_failure_that_nobody_asked_for_is_raised_by_the_next_call(gated: list[Gated]) -> None:
    storage = fresh_memory()
    sk.save({"a": 1}, storage)
    first = sk.save_async({"a": torch.zeros(1)}, gated[0])
    handle = sk.save_async({"a": 2}, storage)
    # Three at once, of which the last two fail: room for the third is there when the first ends.
    threading.Timer(0.1, gated[0].gate.set).start()
    other = sk.save_async({"a": 3}, storage)
    first.result(30)
    saving.background.wait()
    for _ in range(2):
        with pytest.raises(sk.ConflictError, match="holds a checkpoint already"):
            sk.save_async({"a": 4}, storage, overwrite=True)
    assert handle.done()
    assert other.done()
    assert sk.load(storage) == {"a": 1}
    sk.save_async({"a": 4}, storage, overwrite=True).result(30)
    assert sk.load(storage) == {"a": 4}


def test_a_state_that_cannot_be_kept_is_refused_at_once() -> None:
    for _ in range(4):
        # More often than there is room: a refused save gives its room back.
        with pytest.raises(InvalidError, match="'a'"):
            sk.save_async({"a": object()}, fresh_memory())


def test_acts_run_in_order_and_leave_their_room() -> None:
    background, order = Background(2), list[int]()
    handles: list[Handle[None]] = []
    for number in range(5):
        background.reserve()
        handle: Handle[None] = Handle(f"act {number}")
        background.submit(handle, lambda number=number: order.append(number))
        handles.append(handle)
    background.wait()
    assert order == [0, 1, 2, 3, 4]
    assert all(handle.done() for handle in handles)
    background.raise_unseen()


def test_waiting_for_a_stage_has_an_end() -> None:
    with pytest.raises(TimeoutError, match=r"never: not staged within 0\.01 s"):
        Handle[None]("never").staged(0.01)


@pytest.fixture
def stager(monkeypatch: pytest.MonkeyPatch) -> Stager:
    """One that has not copied anything yet."""
    made = Stager()
    monkeypatch.setattr(snapshots, "_stager", made)
    return made


def prepared_threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "shardkeep-prepare"]


def test_the_first_copy_goes_to_the_memory_that_was_prepared(
    gated: list[Gated], stager: Stager
) -> None:
    w = torch.arange(500_000.0)
    state = {"w": w, "view": w[:10], "row": torch.ones(3).expand(4, 3), "empty": torch.empty(0)}
    taken: list[int] = []
    reserve = stager.reserve

    def watched(memory: Any) -> list[torch.Tensor]:
        buffers = reserve(memory)
        taken.extend(buffer.data_ptr() for buffer in buffers)
        return buffers

    with patch.object(stager, "reserve", watched):
        sk.prepare_async(state)
        for thread in prepared_threads():
            thread.join(30)
    memory = {"w": [w]}
    with stager.copy(memory) as snapshot:
        assert snapshot.tree["w"][0].data_ptr() in taken
        assert torch.equal(snapshot.tree["w"][0], w)

    handle = sk.save_async(state, gated[0])
    w.zero_()
    gated[0].gate.set()
    handle.result(30)
    found = sk.load(gated[0])
    assert torch.equal(found["w"], torch.arange(500_000.0))
    assert found["row"].tolist() == [[1.0] * 3] * 4


def test_what_a_copy_has_left_is_not_prepared_again(stager: Stager) -> None:
    memory = {"w": [torch.ones(100_000)]}
    stager.copy(memory).release()
    assert stager.reserve(memory) == []
    assert [one.nbytes for one in stager.reserve(memory | {"more": [torch.ones(7)]})] == [28]


def test_as_much_is_prepared_as_a_copy_takes(stager: Stager) -> None:
    """Also of what is expanded, overlaps, or is one column of much: not as if it were whole."""
    wide = torch.zeros(1000, 1000)
    memory = {
        "expanded": [torch.ones(3).expand(10**6, 3)],
        "column": [wide[:, :1]],
        "tied": [wide.t()[:400], wide.t()[300:]],
        "empty": [torch.empty(0, 5), torch.ones(())],
    }
    prepared = sorted(one.nbytes for one in stager.reserve(memory))
    with stager.copy(memory) as snapshot:
        assert sum(prepared) == snapshot.nbytes < 5 * 10**6
    assert stager.reserve(memory) == []

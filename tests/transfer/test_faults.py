"""When a rank, a disk or the chair fails in a save: does everyone hear it, and is nothing lost?"""

from __future__ import annotations

import errno
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import shardkeep as sk
from shardkeep.errors import DeadlineError, RankFailedError, ShardkeepError, StorageError
from shardkeep.state.keeping import KeptState, keep_state
from shardkeep.storage import LocalStorage, MemoryStorage
from shardkeep.transfer.council import StoreCouncil
from tests.storage.faulty_calls import FaultyCalls
from tests.transfer.worlds import all_well, memory, names, new_store, run_ranks, save_kept


def state_of(rank: int) -> dict[str, Any]:
    return {f"w{rank}": torch.full((50,), float(rank)), "shared": torch.arange(1000)}


class BoomError(RuntimeError):
    pass


def test_a_rank_that_raises_before_it_plans_is_named() -> None:
    def keep(rank: int) -> KeptState:
        if rank == 1:
            raise BoomError("no state here")
        return keep_state(state_of(rank))

    with memory() as storage:
        store = new_store()
        found = save_kept(keep, storage, 3, store=store)
        assert isinstance(found[1], BoomError)
        for rank in (0, 2):
            error = found[rank]
            assert isinstance(error, RankFailedError)
            assert error.failures == {1: "BoomError: no state here"}
        assert names(storage) == []
        assert store.num_keys() == 0


class FailingSink:
    def __init__(self, sink: Any) -> None:
        self._sink = sink

    def write(self, offset: int, buffers: Any) -> None:
        raise StorageError(errno.EIO, "a broken disk", "/mnt/x")

    def finish(self) -> None:
        self._sink.finish()

    def abort(self) -> None:
        self._sink.abort()


class BrokenFor(MemoryStorage):
    """A storage to which one rank cannot write."""

    broken = "-00001-"

    def create(self, key: str) -> Any:
        sink = super().create(key)
        return FailingSink(sink) if self.broken in key else sink


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_cannot_write_is_named(rank: int) -> None:
    storage = BrokenFor(f"broken-{rank}")
    storage.broken = f"-0000{rank}-"
    store = new_store()
    found = save_kept(lambda rank: keep_state(state_of(rank)), storage, 3, store=store)
    for one, error in found.items():
        assert isinstance(error, StorageError if one == rank else RankFailedError)
        assert "a broken disk" in str(error)
        if isinstance(error, RankFailedError):
            assert list(error.failures) == [rank]
            assert error.phase == "save (write)"
    assert names(storage) == []
    assert store.num_keys() == 0
    # The path can be used again.
    storage.broken = "none"
    all_well(save_kept(lambda rank: keep_state(state_of(rank)), storage, 3))


def test_a_rank_that_never_comes_is_named() -> None:
    with memory() as storage:
        start = time.monotonic()
        found = run_ranks(
            lambda rank, council: sk.save(state_of(rank), storage, group=council),
            3,
            timeout=0.5,
            absent=[1],
        )
        assert time.monotonic() - start < 10
        assert isinstance(found[0], DeadlineError)
        for error in found.values():
            assert isinstance(error, DeadlineError | RankFailedError)
            assert "rank 1 of 3 did not report within 0.5 s" in str(error)
        assert names(storage) == []


def test_a_dead_chair_is_named() -> None:
    with memory() as storage:
        found = run_ranks(
            lambda rank, council: sk.save(state_of(rank), storage, group=council),
            3,
            timeout=0.5,
            absent=[0],
        )
        assert sorted(found) == [1, 2]
        for error in found.values():
            assert isinstance(error, ShardkeepError)
            assert "rank 0 has not answered" in str(error)
        assert names(storage) == []


class ChairDiesAfterCommit(MemoryStorage):
    def put_if_absent(self, key: str, data: Any) -> bool:
        super().put_if_absent(key, data)
        # The others hear nothing more, and give up.
        time.sleep(1.5)
        raise KeyboardInterrupt


def test_files_of_a_committed_checkpoint_stay_when_the_chair_dies() -> None:
    storage = ChairDiesAfterCommit("dying-chair")
    found = run_ranks(
        lambda rank, council: sk.save(state_of(rank), storage, group=council), 3, timeout=0.3
    )
    assert all(isinstance(error, BaseException) for error in found.values())
    loaded = sk.load(storage)
    for rank in range(3):
        assert torch.equal(loaded[f"w{rank}"], torch.full((50,), float(rank)))


class StoreThatEnds:
    """A Store whose process ends with the first rank that is through, right after a note."""

    def __init__(self, last: str) -> None:
        self._store = new_store()
        self._last = last
        self._is_gone = False

    def set(self, key: str, value: Any) -> None:
        self._ask().set(key, value)
        self._is_gone = key.endswith(self._last)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ask(), name)

    def _ask(self) -> Any:
        if self._is_gone:
            raise RuntimeError("Connection reset by peer")
        return self._store


def test_a_save_is_done_when_the_store_ends_after_the_commit() -> None:
    """Whoever is slower than the rank that keeps the Store looks at the checkpoint itself."""
    with memory() as storage:
        found = all_well(
            run_ranks(
                lambda rank, council: sk.save(state_of(rank), storage, group=council),
                3,
                store=StoreThatEnds("write/all"),
            )
        )
        assert len({(one.save_id, one.total_nbytes) for one in found.values()}) == 1
        with sk.open(storage) as checkpoint:
            assert checkpoint.save_id == found[1].save_id
            assert sum(checkpoint.manifest.files.nbytes) == found[1].total_nbytes


def test_a_save_fails_when_the_store_ends_before_the_commit() -> None:
    with memory() as storage:
        sk.save({"w": torch.zeros(3)}, storage)
        found = run_ranks(
            lambda rank, council: sk.save(state_of(rank), storage, overwrite=True, group=council),
            3,
            store=StoreThatEnds("write/2"),
        )
        for error in found.values():
            assert isinstance(error, RankFailedError)
            assert "Store does not answer" in str(error)
        assert list(sk.load(storage)) == ["w"]


def test_a_load_that_fails_on_one_rank_fails_on_all() -> None:
    with memory() as storage:
        sk.save({"w": torch.zeros(3)}, storage)
        targets = [{"w": torch.zeros(3)}, {"w": torch.zeros(4)}]
        store = new_store()
        found = run_ranks(
            lambda rank, council: sk.load(storage, targets[rank], group=council), 2, store=store
        )
        assert "has shape (4,) here" in str(found[1])
        assert isinstance(found[0], RankFailedError)
        assert "has shape (4,) here" in str(found[0])
        assert store.num_keys() == 0


def test_explaining_a_save_fails_on_all_ranks_alike() -> None:
    states: list[Any] = [{"w": torch.zeros(3)}, {"w": object()}]

    def act(rank: int, council: StoreCouncil) -> Any:
        return sk.explain_save(states[rank], group=council)

    found = run_ranks(act, 2, timeout=5.0)
    assert "'w'" in str(found[1])
    assert isinstance(found[0], RankFailedError)


def test_an_explanation_of_a_save_of_many_ranks_says_what_happens() -> None:
    with memory() as storage:
        store = new_store()
        explained = all_well(
            run_ranks(
                lambda rank, council: sk.explain_save(state_of(rank), group=council),
                3,
                store=store,
            )
        )
        saved = all_well(save_kept(lambda rank: keep_state(state_of(rank)), storage, 3))
        assert store.num_keys() == 0
        for one in explained.values():
            assert one == explained[0]
        for rank, outcome in saved.items():
            data = sum(record.nbytes - record.header_nbytes for record in outcome.files)
            assert explained[0].nbytes[rank] == data
        assert explained[0].files == len(names(storage)) - 1
        assert explained[0].views == 3
        assert explained[0].replicated_nbytes == 8000


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "ckpt"
    sk.save({"w": torch.zeros(2000)}, path)
    return path


def assert_old_stands(path: Path, before: list[str]) -> None:
    assert names(str(path)) == before
    assert torch.equal(sk.load(path)["w"], torch.zeros(2000))


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        ("pwritev", errno.ENOSPC),
        ("pwritev", errno.EIO),
        ("fsync", errno.EIO),
        ("fsync", errno.ENOSPC),
        ("rename", errno.EIO),
    ],
)
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_disk_that_fails_leaves_the_old_checkpoint(
    old: Path, kind: str, number: int, nth: int
) -> None:
    before, calls = names(str(old)), FaultyCalls()
    with LocalStorage(old, calls=calls) as storage:
        counted = calls.counts[kind]
        calls.fail(kind, number, nth=nth)
        error = failure_of(storage)
        was_hit = calls.counts[kind] - counted >= nth
    if error is None:
        # Not so many calls, or one after the commit: when the old files are removed.
        assert not was_hit or kind == "fsync"
        assert torch.equal(sk.load(old)["w"], torch.ones(2000))
        return
    assert str(old) in str(error)
    assert number != errno.ENOSPC or "bytes are free" in str(error)
    if error.kind == "outcome_unknown":
        # The manifest was put, and the fsync of its folder failed: one of the two stands.
        assert sk.load(old)["w"].unique().numel() == 1
    else:
        assert_old_stands(old, before)


def failure_of(storage: LocalStorage) -> StorageError | None:
    try:
        sk.save({"w": torch.ones(2000)}, storage, overwrite=True)
    except StorageError as error:
        return error
    return None


def test_a_failed_fsync_never_commits(tmp_path: Path) -> None:
    """Whichever fsync before the commit fails, there is no checkpoint, and no second try."""
    path = tmp_path / "new"
    for nth in range(1, 4):
        calls = FaultyCalls()
        with LocalStorage(path, create=True, calls=calls) as storage:
            calls.fail("fsync", errno.EIO, nth=nth)
            with pytest.raises(StorageError, match="I/O error"):
                sk.save({"w": torch.ones(2000)}, storage)
            assert names(storage) == [], nth


def test_a_second_file_that_cannot_be_made_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shardkeep.transfer import planning

    monkeypatch.setattr(planning, "_MIN_NBYTES_FOR_FILES", 0)
    state = {"a": torch.zeros(100), "b": torch.zeros(100)}

    class Full(MemoryStorage):
        def create(self, key: str) -> Any:
            if key.endswith("-1.safetensors"):
                raise StorageError(errno.EMFILE, "too many", "/x")
            return super().create(key)

    storage = Full("full-2")
    with pytest.raises(StorageError, match="too many"):
        sk.save(state, storage, threads=2)
    assert names(storage) == []

    class Broken(MemoryStorage):
        def create(self, key: str) -> Any:
            sink = super().create(key)
            if not key.endswith("-1.safetensors"):
                return sink
            time.sleep(0.05)
            return FailingSink(sink)

    storage = Broken("full-3")
    with pytest.raises(StorageError, match="a broken disk"):
        sk.save(state, storage, threads=2)
    assert names(storage) == []


class AnnouncementLost(StoreCouncil):
    """Its Store fails whenever the outcome is to be announced."""

    def announce(self, phase: str, note: bytes, *, word: bytes = b"") -> None:
        if phase == "write":
            raise RankFailedError({self.me: "the c10d Store does not answer"}, phase)
        super().announce(phase, note, word=word)


def test_a_committed_save_does_not_fail_on_the_rank_that_cannot_announce_it() -> None:
    store = new_store()
    with memory() as storage:

        def act(rank: int, _: StoreCouncil) -> Any:
            kind = AnnouncementLost if rank == 0 else StoreCouncil
            council = kind(store, range(2), rank, topic="lost", timeout=0.5)
            return sk.save(state_of(rank), storage, group=council)

        found = run_ranks(act, 2)
        assert isinstance(found[0], sk.SaveResult)
        assert isinstance(found[1], DeadlineError)
        assert torch.equal(sk.load(storage)["w1"], torch.full((50,), 1.0))


class OldFilesStay(MemoryStorage):
    """The old files can be removed only after every other rank has returned."""

    returned = threading.Event()
    waited = False

    def delete(self, key: str, *, missing_ok: bool = False) -> None:
        type(self).waited = self.returned.wait(5.0)
        super().delete(key, missing_ok=missing_ok)


def test_nobody_waits_until_the_replaced_files_are_removed() -> None:
    storage = OldFilesStay("old-files")
    sk.save(state_of(0), storage)

    def act(rank: int, council: StoreCouncil) -> Any:
        result = sk.save(state_of(rank), storage, overwrite=True, group=council)
        if rank == 1:
            storage.returned.set()
        return result

    all_well(run_ranks(act, 2))
    assert storage.waited

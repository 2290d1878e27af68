"""Ranks that share what they read: every byte once, whatever the parallelism."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import shardkeep as sk
from shardkeep.plan import sharing
from shardkeep.plan.sharing import Reach
from shardkeep.ranks import commons
from shardkeep.state.diff import diff_state_dict
from shardkeep.storage import LocalStorage
from shardkeep.transfer import filling, pump, shared_fill, wire
from tests.distributed.parallelisms import assert_state, meet, spoil, state_as, ways

SECONDS = 30.0


class Counted(LocalStorage):
    """As an object store: it cannot be mapped. Counts what is fetched of data files."""

    map = None  # type: ignore[assignment]
    reading = None  # type: ignore[assignment]

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.nbytes = 0
        self._lock = threading.Lock()

    def read_into(self, key: str, offset: int, buffers: Sequence[Any]) -> None:
        self._count(sum(memoryview(one).nbytes for one in buffers))
        super().read_into(key, offset, buffers)

    def read(self, key: str, offset: int, nbytes: int) -> bytes:
        self._count(nbytes)
        return super().read(key, offset, nbytes)

    def _count(self, nbytes: int) -> None:
        with self._lock:
            self.nbytes += nbytes


def big_state(way: str, scale: float = 1.0) -> dict[str, Any]:
    """About 25 MB, in tensors of many sizes; a few are whole on every rank in any case."""
    torch.manual_seed(1)
    whole = [torch.randn(rows, 3, 129) * scale for rows in (1, 7, 64, 1000, 5000, 9000)]
    plain = {"steps": [torch.tensor(float(n)) * scale for n in range(5)], "norm": whole[2].clone()}
    if way == "ddp":
        return {"model": whole, **plain}
    if way == "sharded":
        plain = {}
    shape, places = {
        "fsdp": ((4,), [Shard(0)]),
        "sharded": ((4,), [Shard(0)]),
        "hsdp": ((2, 2), [Replicate(), Shard(0)]),
        "columns": ((4,), [Shard(2)]),
    }[way]
    mesh = init_device_mesh("cpu", shape)
    return {"model": [distribute_tensor(one, mesh, places) for one in whole], **plain}


def _equal(state: dict[str, Any], truth: dict[str, Any]) -> bool:
    return not diff_state_dict(state, truth)


def save(rank: int, world: int, *, path: str, way: str) -> int:
    return sk.save(big_state(way), path, timeout=SECONDS).total_nbytes


def load(rank: int, world: int, *, path: str, way: str, share: str) -> list[int]:
    """Bytes fetched from the storage, and what the report says of them."""
    state = big_state(way, scale=0.0)
    with Counted(path) as storage:
        report = sk.load(storage, state, share=share, timeout=SECONDS)  # type: ignore[arg-type]
        fetched = storage.nbytes
    assert _equal(state, big_state(way))
    return [fetched, report.nbytes_read, report.nbytes_received]


def load_without_wire(rank: int, world: int, *, path: str, way: str) -> list[int]:
    """Nobody connects to anybody."""
    with patch.object(wire.Wire, "connect", side_effect=AssertionError("it is not needed")):
        return load(rank, world, path=path, way=way, share="auto")


def load_beside_groups_of_few(rank: int, world: int, *, path: str) -> list[int]:
    """Some ranks are in more groups than others, as the stages of a pipeline are."""
    dist.new_group([0, 1])  # called by all, but only the two have it
    with patch.dict(wire._wires, clear=True):
        return load(rank, world, path=path, way="ddp", share="job")


def load_from_neighbours(rank: int, world: int, *, path: str, way: str, can_map: bool) -> int:
    """How often a rank took bytes out of the memory of another one."""
    taken: list[object] = []

    class Counting(commons.Borrowed):
        def wait(self) -> None:
            super().wait()
            taken.append(self)

    mapped = commons.map_memory if can_map else lambda *place: None
    with (
        patch.dict(wire._wires, clear=True),
        patch.object(commons, "map_memory", mapped),
        patch.object(commons, "Borrowed", Counting),
    ):
        load(rank, world, path=path, way=way, share="job")
    return len(taken)


def load_files(rank: int, world: int, *, path: str, way: str, min_waste: int) -> list[int]:
    """As anybody would, from files: without a word about sharing."""
    state = big_state(way, scale=0.0)
    with patch.object(sharing, "_MIN_WASTE_NBYTES", min_waste):
        report = sk.load(path, state, timeout=SECONDS)
    assert _equal(state, big_state(way))
    return [report.nbytes_read, report.nbytes_received]


def load_files_of_users(rank: int, world: int, *, path: str, ranks_each: int) -> list[int]:
    """So many ranks in a row see each other's memory."""
    with patch("shardkeep.transfer.share.memory_key", lambda: f"user-{rank // ranks_each}"):
        return load_files(rank, world, path=path, way="columns", min_waste=0)


def load_from_two_hosts(rank: int, world: int, *, path: str) -> list[int]:
    with patch("shardkeep.transfer.share.host_key", lambda: f"host-{rank // 2}"):
        return load(rank, world, path=path, way="ddp", share="host")


def load_little_at_a_time(rank: int, world: int, *, path: str) -> list[int]:
    """Other dtypes on some ranks, so that they stage more often; small stripes, little memory."""
    state = big_state("ddp", scale=0.0)
    if rank in (1, 2):
        state["model"] = [one.double() for one in state["model"]]
    with (
        patch.object(filling, "_STAGED_NBYTES", 2**20 * rank + 1),
        patch.object(shared_fill, "STRIPE_NBYTES", 2**19),
        patch.object(pump, "IN_FLIGHT_NBYTES", 2**20),
        Counted(path) as storage,
    ):
        sk.load(storage, state, cast=True, share="job", timeout=SECONDS)
        fetched = storage.nbytes
    state["model"] = [one.float() for one in state["model"]]
    assert _equal(state, big_state("ddp"))
    return [fetched]


def load_what_is_on_rank_3(rank: int, world: int, *, path: str) -> list[int]:
    """Rank 3 alone has the files at hand; it has filled its own state when others still stage."""
    state = big_state("ddp", scale=0.0)
    if rank < 3:
        state["model"] = [one.double() for one in state["model"]]
    near = dict.fromkeys(range(100), (3,))
    with (
        patch.object(filling, "_STAGED_NBYTES", 2**20),
        patch("shardkeep.transfer.share.Reach", lambda: Reach(near, far=False)),
        Counted(path) as storage,
    ):
        report = sk.load(storage, state, cast=True, share="job", timeout=SECONDS)
    state["model"] = [one.float() for one in state["model"]]
    assert _equal(state, big_state("ddp"))
    return [report.nbytes_read, report.nbytes_received]


def load_damaged(rank: int, world: int, *, path: str, good: str) -> list[str]:
    """What the ranks raise; afterwards they share again."""
    state = big_state("ddp", scale=0.0)
    try:
        sk.load(path, state, share="job", timeout=SECONDS)
        said = ["nothing"]
    except sk.ShardkeepError as error:
        said = [type(error).__name__, error.kind, str(error)]
    load(rank, world, path=good, way="ddp", share="job")
    return said


def load_unfit(rank: int, world: int, *, path: str) -> str:
    """One rank has a shape of its own: it fails before anything is shared."""
    state = big_state("ddp", scale=0.0)
    if rank == 2:
        state["norm"] = torch.zeros(3)
    try:
        sk.load(path, state, share="job", timeout=SECONDS)
    except sk.ShardkeepError as error:
        return str(error)
    return ""


def load_every_way(rank: int, world: int, *, paths: list[str]) -> int:
    """Any parallelism into any other, shared."""
    ranks = tuple(range(world))
    meet(ranks)
    count = 0
    for way in ways(world):
        state, truth = state_as(way, ranks), state_as(way, ranks)
        for path in paths:
            spoil(state)
            sk.load(path, state, share="job", timeout=SECONDS)
            assert_state(state, truth)
            count += 1
    return count


def save_to_store(rank: int, world: int, *, url: str, options: dict[str, Any], way: str) -> int:
    storage = sk.ObjectStorage(url, **options)
    return sk.save(big_state(way), storage, timeout=SECONDS).total_nbytes


def load_from_store(
    rank: int, world: int, *, url: str, options: dict[str, Any], way: str
) -> list[int]:
    """As anybody would: without a word about sharing."""
    state = big_state(way, scale=0.0)
    report = sk.load(sk.ObjectStorage(url, **options), state, timeout=SECONDS)
    assert _equal(state, big_state(way))
    return [report.nbytes_read, report.nbytes_received]

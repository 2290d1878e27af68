"""Checkpoints on real ranks: any parallelism into any other, beside a training loop's own work."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import shardkeep as sk
from shardkeep.transfer import saving
from shardkeep.transfer.council import SoloCouncil
from tests.distributed.parallelisms import (
    assert_state,
    group_of,
    meet,
    module_state,
    parts,
    spoil,
    state_as,
    torch_sharded,
    ways,
)
from tests.distributed.tensors import assert_group_works, assert_same

SECONDS = 60.0


def save_in_every_way(rank: int, world: int, *, folder: str, groups: list[list[int]]) -> None:
    """Each group saves the model under each parallelism, as `<ranks>-<way>`."""
    for ranks in map(tuple, groups):
        meet(ranks)
        for way in ways(len(ranks)) if rank in ranks else ():
            path = Path(folder) / f"{'+'.join(map(str, ranks))}-{way}"
            sk.save(state_as(way, ranks), path, group=group_of(ranks), timeout=SECONDS)
    assert_group_works()


def load_into_every_way(rank: int, world: int, *, paths: list[str], groups: list[list[int]]) -> int:
    """Each group loads each checkpoint into the model under each parallelism; how many loads."""
    count = 0
    for ranks in map(tuple, groups):
        meet(ranks)
        for way in ways(len(ranks)) if rank in ranks else ():
            state, truth = state_as(way, ranks), state_as(way, ranks)
            for path in paths:
                count += 1
                _load_and_compare(path, way, ranks, state, truth)
    assert_group_works()
    return count


def _load_and_compare(path: str, way: str, ranks: tuple[int, ...], state: Any, truth: Any) -> None:
    spoil(state)
    report = sk.load(path, state, group=group_of(ranks), timeout=SECONDS)
    try:
        assert not report.missing
        assert_state(state, truth)
    except AssertionError as error:
        raise AssertionError(f"{path} into {way} on ranks {ranks}: {error}") from error


def a_meta_model_takes_a_checkpoint(rank: int, world: int, *, path: str, way: str) -> None:
    ranks = tuple(range(world))
    meet(ranks)
    state = module_state(way, ranks, device="meta")

    sk.load(path, state, timeout=SECONDS)

    assert_state(
        dict(state.items()),
        {key: leaf.detach() for key, leaf in module_state(way, ranks).items()},
    )


def torch_sharded_tensors_are_kept(rank: int, world: int, *, path: str, rows: int) -> str:
    """What went wrong, which is told rather than raised so that the pool lives on."""
    full = torch.arange(2.0 * rows).reshape(rows, 2)
    try:
        sk.save({"w": torch_sharded(full, tuple(range(world)))}, path, timeout=SECONDS)
        assert_same(sk.load(path)["w"], full)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


# Beside training


class Training:
    """A loop that changes sharded parameters in place, by collectives of its own."""

    def __init__(self, rank: int, world: int, rows: int) -> None:
        mesh = init_device_mesh("cpu", (world,))
        full = torch.arange(world * rows * 256, dtype=torch.float32).reshape(-1, 256)
        self.rank = rank
        self.state: dict[str, Any] = {
            f"layer{number}": distribute_tensor(full + number, mesh, [Shard(0)], src_data_rank=None)
            for number in range(4)
        }
        self.state["step"] = torch.zeros((), dtype=torch.int64)
        self.state["plain"] = torch.zeros(257)
        self.collectives = 0

    def step(self) -> None:
        gradient = torch.full((256,), 0.5 * (self.rank + 1))
        dist.all_reduce(gradient)
        self.collectives += 1
        for leaf in self.state.values():
            local = leaf.to_local() if isinstance(leaf, DTensor) else leaf
            local.mul_(3).add_(gradient[0].to(local.dtype))

    def copy(self) -> dict[str, torch.Tensor]:
        return {key: parts(leaf)[0].clone() for key, leaf in self.state.items()}


def async_saves_beside_training(rank: int, world: int, *, folder: str) -> int:
    """How many collectives of the loop went through while a save was under way."""
    training = Training(rank, world, rows=256)
    before = collectives_so_far()
    saves: list[tuple[str, Any, dict[str, torch.Tensor]]] = []
    beside = 0
    for number in range(40):
        training.step()
        if number % 5 == 2:
            path = f"{folder}/{number}"
            copy = training.copy()
            kind: Any = ("copy", "fork")[number // 5 % 2]
            handle = sk.save_async(training.state, path, timeout=SECONDS, snapshot=kind)
            saves.append((path, handle, copy))
        training.step()
        beside += bool(saves) and not saves[-1][1].done()
    for path, handle, _ in saves:
        assert handle.result(SECONDS).path == path
    assert collectives_so_far() - before == training.collectives
    for path, _, copy in saves:
        sk.load(path, training.state, timeout=SECONDS)
        for key, part in copy.items():
            assert_same(parts(training.state[key])[0], part)
    assert collectives_so_far() - before == training.collectives
    return beside


def collectives_so_far() -> int:
    """What the default group itself has counted."""
    group: Any = dist.distributed_c10d._get_default_group()
    return group._get_sequence_number_for_group()


COLLECTIVES = [
    "all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_gather_object",
    "all_reduce", "all_reduce_coalesced", "all_to_all", "all_to_all_single", "barrier",
    "broadcast", "broadcast_object_list", "gather", "gather_object", "monitored_barrier",
    "new_group", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter",
    "scatter_object_list", "send", "recv", "isend", "irecv", "batch_isend_irecv",
]  # fmt: skip


@contextmanager
def collectives_forbidden() -> Iterator[list[str]]:
    """Every way into a collective or message, by Python or by c10d's dispatcher, is noted."""
    called: list[str] = []

    def noting(name: str, act: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            called.append(name)
            return act(*args, **kwargs)

        return noted

    with pytest.MonkeyPatch.context() as patch:
        for name in COLLECTIVES:
            for module in (dist, dist.distributed_c10d):
                patch.setattr(module, name, noting(name, getattr(module, name)))
        for name in dir(dist.ProcessGroup):
            if name.rstrip("_") in _METHODS:
                patch.setattr(
                    dist.ProcessGroup, name, noting(name, getattr(dist.ProcessGroup, name))
                )
        yield called


_METHODS = {
    "allgather", "_allgather_base", "allreduce", "allreduce_coalesced", "alltoall",
    "alltoall_base", "barrier", "broadcast", "gather", "monitored_barrier", "recv",
    "recv_anysource", "reduce", "reduce_scatter", "_reduce_scatter_base", "scatter", "send",
}  # fmt: skip


def a_save_calls_no_collective(rank: int, world: int, *, folder: str) -> None:
    ranks = tuple(range(world))
    meet(ranks)
    states = {way: state_as(way, ranks) for way in ways(world)}
    dist.barrier()
    with collectives_forbidden() as called:
        dist.all_reduce(torch.ones(()))
    assert called, "a collective goes unnoticed"
    before = collectives_so_far()

    with collectives_forbidden() as called:
        for way, state in states.items():
            sk.save(state, f"{folder}/{way}", timeout=SECONDS)
            sk.save_async(state, f"{folder}/{way}-async", timeout=SECONDS).result(SECONDS)
            sk.load(f"{folder}/{way}", state, timeout=SECONDS)

    assert called == []
    assert collectives_so_far() == before
    dist.all_reduce(torch.ones(()))
    assert collectives_so_far() == before + 1, "this group does not count"


# Failures that leave all ranks alive


def store_keys() -> int:
    return dist.distributed_c10d._get_default_store().num_keys()


def error_of(act: Callable[[], object]) -> list[str]:
    """The error's class and its text."""
    try:
        act()
    except sk.ShardkeepError as error:
        return [type(error).__name__, str(error)]
    return ["", ""]


def _version(rank: int, version: int) -> dict[str, Any]:
    return {"all": torch.full((3000,), version), f"of{rank}": torch.full((5,), version)}


def _assert_version(path: str, version: int) -> None:
    state = sk.load(path)
    assert sorted(state) == ["all", "of0", "of1", "of2", "of3"]
    for tensor in state.values():
        assert bool((tensor == version).all())


def no_keys_are_left(rank: int, world: int, *, folder: str) -> None:
    """Neither after saves nor after loads, whatever the views, in all groups and subgroups."""
    ranks = tuple(range(world))
    for group in (ranks, (0, 1), (2, 3)):
        meet(group)
    dist.barrier()
    before = store_keys()
    dist.barrier()
    for number in range(3):
        path = f"{folder}/{number}"
        sk.save(_version(rank, number), path, timeout=SECONDS)
        sk.save_async(_version(rank, number), path, overwrite=True, timeout=SECONDS).result()
        sk.load(path, _version(rank, 99), strict=False, timeout=SECONDS)
        half = (0, 1) if rank < 2 else (2, 3)
        sk.save(_version(rank, 0), f"{path}-{half[0]}", group=group_of(half), timeout=SECONDS)
    dist.barrier()
    assert store_keys() == before
    dist.barrier()


def failures_of_one_rank(rank: int, world: int, *, folder: str, how: str) -> list[str]:
    """What this rank raised; the path keeps the checkpoint it had, and takes the next one."""
    path = f"{folder}/checkpoint"
    sk.save(_version(rank, 1), path, timeout=SECONDS)

    found = error_of(lambda: FAILURES[how](rank, path))

    _assert_version(path, 1)
    dist.barrier()
    sk.save(_version(rank, 3), path, overwrite=True, timeout=SECONDS)
    _assert_version(path, 3)
    dist.barrier()
    return found


def _unsupported_value(rank: int, path: str) -> None:
    state = _version(rank, 2) | ({"what": object()} if rank == 2 else {})
    sk.save(state, path, overwrite=True, timeout=SECONDS)


def _unsupported_value_async(rank: int, path: str) -> None:
    state = _version(rank, 2) | ({"what": object()} if rank == 2 else {})
    sk.save_async(state, path, overwrite=True, timeout=SECONDS).result(SECONDS)


def _bad_option(rank: int, path: str) -> None:
    threads = 0 if rank == 2 else 2
    sk.save(_version(rank, 2), path, overwrite=True, threads=threads, timeout=3)


def _different_paths(rank: int, path: str) -> None:
    sk.save(_version(rank, 2), path + "-2" * (rank == 2), overwrite=True, timeout=SECONDS)


def _not_overwritten(rank: int, path: str) -> None:
    sk.save(_version(rank, 2), path, timeout=SECONDS)


def _replicas_differ(rank: int, path: str) -> None:
    state = _version(rank, 2)
    state["all"][1234] += rank == 2
    sk.save(state, path, overwrite=True, timeout=SECONDS, check_replicas="all")


def _shapes_differ(rank: int, path: str) -> None:
    state = _version(rank, 2) | ({"all": torch.zeros(7)} if rank == 2 else {})
    sk.save(state, path, overwrite=True, timeout=SECONDS)


def _unwritable(rank: int, path: str) -> None:
    if rank == 2:
        # Another rank's disk: only here, something is in the way.
        Path(path + "-file").write_text("")
        path += "-file/below"
    sk.save(_version(rank, 2), path, overwrite=True, timeout=SECONDS)


def _disk_not_shared(rank: int, path: str) -> None:
    """As node-local disks are: the same name, another folder."""
    from shardkeep.storage import LocalStorage

    class Elsewhere(LocalStorage):
        location = path  # type: ignore[assignment]

    if rank != 2:
        sk.save(_version(rank, 2), path, overwrite=True, timeout=SECONDS)
        return
    with Elsewhere(path + "-elsewhere", create=True) as storage:
        sk.save(_version(rank, 2), storage, overwrite=True, timeout=SECONDS)


def _damaged_for_one(rank: int, path: str, spoil_file: Callable[[Path], object]) -> None:
    # The first rank's save ends after the others': it still removes its lock file.
    dist.barrier()
    if rank == 2:
        copy = Path(path + "-copy")
        shutil.copytree(path, copy)
        spoil_file(next(copy.glob("*-00002-0.safetensors")))
        path = str(copy)
    sk.load(path, _version(2, 99), strict=False, timeout=SECONDS)


def _file_damaged_on_one_rank(rank: int, path: str) -> None:
    def flip(file: Path) -> None:
        data = bytearray(file.read_bytes())
        data[-3] ^= 4
        file.write_bytes(data)

    _damaged_for_one(rank, path, flip)


def _file_missing_on_one_rank(rank: int, path: str) -> None:
    _damaged_for_one(rank, path, Path.unlink)


def _checkpoint_missing_on_one_rank(rank: int, path: str) -> None:
    sk.load(path + "-none" * (rank == 2), _version(2, 99), strict=False, timeout=SECONDS)


FAILURES: dict[str, Callable[[int, str], None]] = {
    act.__name__.removeprefix("_"): act
    for act in (
        _unsupported_value,
        _unsupported_value_async,
        _bad_option,
        _different_paths,
        _not_overwritten,
        _replicas_differ,
        _shapes_differ,
        _unwritable,
        _disk_not_shared,
        _file_damaged_on_one_rank,
        _file_missing_on_one_rank,
        _checkpoint_missing_on_one_rank,
    )
}


def an_unseen_failure_does_not_part_the_ranks(rank: int, world: int, *, folder: str) -> list[str]:
    """A failed async save surfaces at the next call, on some ranks one call later."""
    path = f"{folder}/checkpoint"
    sk.save(_version(rank, 1), path, timeout=SECONDS)
    handle = sk.save_async(_version(rank, 2), path, timeout=SECONDS)
    while not handle.done():
        time.sleep(0.001)

    def save_again() -> None:
        sk.save_async(_version(rank, 2), path, overwrite=True, timeout=10).result(SECONDS)

    with pytest.MonkeyPatch.context() as patch:
        if rank >= 2:
            patch.setattr(saving.background, "raise_unseen", lambda: None)
        found = error_of(save_again)
    _assert_version(path, 1)
    error_of(save_again)
    sk.save_async(_version(rank, 3), path, overwrite=True, timeout=10).result(SECONDS)
    _assert_version(path, 3)
    dist.barrier()
    return found


def two_jobs_save_to_one_path(
    rank: int, world: int, *, folder: str, overwrite: bool
) -> list[list[str]]:
    """What this rank raised in each round; ranks 0 and 1 are one job, 2 and 3 another."""
    mine = (0, 1) if rank < 2 else (2, 3)
    for ranks in ((0, 1), (2, 3)):
        meet(ranks)
    found: list[list[str]] = []
    for number in range(10):
        path = f"{folder}/{number}"
        if overwrite and rank == 0:
            sk.save({"w": torch.full((9000,), 7), "job": 7}, path, group=SoloCouncil())
        dist.barrier()
        state = {"w": torch.full((9000,), mine[0]), "job": mine[0]}
        options: Any = {"overwrite": overwrite, "group": group_of(mine), "timeout": SECONDS}
        found.append(error_of(partial(sk.save, state, path, **options)))
        dist.barrier()
        stands = sk.load(path)
        assert bool((stands["w"] == stands["job"]).all())
        if stands["job"] == mine[0]:
            assert found[-1][0] == "", "what was said to have failed stands"
        dist.barrier()
    return found

"""What the ranks do: save with torch.distributed.checkpoint, load here, and the other way round."""

# torch does not say what it exports.
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, get_state_dict
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import shardkeep as sk
from shardkeep import interchange
from shardkeep.integrations.dcp import ShardkeepReader, ShardkeepWriter
from shardkeep.transfer.progress import Meter
from shardkeep.translate.dcp_writing import export_dcp
from shardkeep.translate.opening import open_source
from tests.distributed import parallelisms
from tests.distributed.cases_models import Model
from tests.distributed.parallelisms import Ranks, assert_state, group_of, spoil, state_as
from tests.distributed.tensors import assert_same

warnings.simplefilter("ignore", UserWarning)
PAIR = (0, 1)


def meet(rank: int, world: int) -> None:
    """Make all groups once."""
    for ranks in (tuple(range(world)), PAIR):
        parallelisms.meet(ranks)


def dcp_saves(rank: int, world: int, *, way: str, path: str) -> None:
    state = {"model": state_as(way, tuple(range(world))), "step": 7, "lrs": [0.5, 0.25]}
    dcp.save(state, checkpoint_id=path)


def writer_saves(rank: int, world: int, *, way: str, path: str, overwrite: bool = False) -> None:
    state = {"model": state_as(way, tuple(range(world))), "step": 7, "lrs": [0.5, 0.25]}
    dcp.save(state, storage_writer=ShardkeepWriter(path, overwrite=overwrite))


def sk_saves(rank: int, world: int, *, way: str, path: str) -> None:
    state = {"model": state_as(way, tuple(range(world))), "step": 7, "lrs": [0.5, 0.25]}
    sk.save(state, path, durable=False)


def sk_loads(rank: int, world: int, *, way: str, path: str, ranks: list[int]) -> int:
    """Fill a state that lies on some of the ranks; how many bytes this one read."""
    members: Ranks = tuple(ranks)
    if rank not in members:
        return 0
    state, truth = _empty(way, members), state_as(way, members)
    report = sk.load(path, into=state, group=group_of(members))
    assert_state(state["model"], truth)
    assert (state["step"], state["lrs"]) == (7, [0.5, 0.25])
    return report.nbytes_read


def reader_loads(rank: int, world: int, *, way: str, path: str, ranks: list[int]) -> None:
    members: Ranks = tuple(ranks)
    if rank not in members:
        return
    state, truth = _empty(way, members), state_as(way, members)
    dcp.load(state, storage_reader=ShardkeepReader(path), process_group=group_of(members))
    assert_state(state["model"], truth)
    assert (state["step"], state["lrs"]) == (7, [0.5, 0.25])


def dcp_loads(rank: int, world: int, *, way: str, path: str, ranks: list[int]) -> None:
    members: Ranks = tuple(ranks)
    if rank not in members:
        return
    state, truth = _empty(way, members), state_as(way, members)
    dcp.load(state, checkpoint_id=path, process_group=group_of(members))
    assert_state(state["model"], truth)
    assert (state["step"], state["lrs"]) == (7, [0.5, 0.25])


def _empty(way: str, members: Ranks) -> dict[str, Any]:
    state = state_as(way, members)
    spoil(state)
    return {"model": state, "step": 0, "lrs": [0.0, 0.0]}


def imports(rank: int, world: int, *, source: str, path: str) -> int:
    """How many bytes this rank wrote."""
    return interchange.import_checkpoint(source, path, durable=False).nbytes


def rank_0_exports(rank: int, world: int, *, source: str, path: str) -> None:
    if rank:
        return
    opened = open_source(source)
    export_dcp(
        opened,
        Path(path),
        keys=None,
        prefix="",
        rename=None,
        dtype=None,
        max_memory_nbytes=2**20,
        threads=2,
        force=False,
        verify=True,
        meter=Meter("exporting", None, show=False),
    )
    opened.storage.close()


def _trained(ranks: Ranks, *, steps: int) -> tuple[Model, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Model(8, 16)
    parallelisms.fsdp(model, ranks)
    optim = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(steps):
        for number, parameter in enumerate(model.parameters()):
            grad = torch.full_like(parameter, 0.1 * number + step)
            parameter.grad = grad
        optim.step()
    return model, optim


def trained_state_goes_by_dcp_and_comes_by_sk(rank: int, world: int, *, path: str) -> None:
    """Model and optimizer by torch's own names; a fresh pair is filled from the folder."""
    model, optim = _trained(tuple(range(world)), steps=2)
    weights, moments = get_state_dict(model, optim)
    dcp.save({"model": weights, "optim": moments}, checkpoint_id=path)
    fresh_model, fresh_optim = _trained(tuple(range(world)), steps=1)
    fresh_weights, fresh_moments = get_state_dict(fresh_model, fresh_optim)
    fresh = {"model": fresh_weights, "optim": fresh_moments}
    sk.load(path, into=fresh)
    _assert_equal(fresh, {"model": weights, "optim": moments})


def trained_state_goes_by_the_writer_and_comes_by_the_reader(
    rank: int, world: int, *, path: str
) -> None:
    model, optim = _trained(tuple(range(world)), steps=2)
    moments = get_optimizer_state_dict(model, optim)
    response: Any = dcp.async_save({"optim": moments}, storage_writer=ShardkeepWriter(path))
    getattr(response, "upload_completion", response).result()
    fresh_model, fresh_optim = _trained(tuple(range(world)), steps=1)
    fresh = {"optim": get_optimizer_state_dict(fresh_model, fresh_optim)}
    dcp.load(fresh, storage_reader=ShardkeepReader(path))
    _assert_equal(fresh, {"optim": moments})


def _assert_equal(actual: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert list(actual) == list(expected)
        for key in expected:
            _assert_equal(actual[key], expected[key])
    elif isinstance(expected, list):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            _assert_equal(one, other)
    elif isinstance(expected, DTensor):
        assert_same(actual.to_local().detach(), expected.to_local().detach())
    elif isinstance(expected, torch.Tensor):
        assert_same(actual, expected)
    else:
        assert actual == expected


def a_value_that_cannot_be_kept_is_refused_on_all(rank: int, world: int, *, path: str) -> str:
    try:
        dcp.save({"odd": {1, 2, 3}}, storage_writer=ShardkeepWriter(path))
    except dcp.CheckpointException as error:
        return str(error)
    return ""


def a_checkpoint_that_is_there_stays(rank: int, world: int, *, path: str) -> str:
    try:
        writer_saves(rank, world, way="fsdp", path=path)
    except dcp.CheckpointException as error:
        dist.barrier()
        return str(error)
    return ""


def reads_of_a_large_tensor(rank: int, world: int, *, path: str) -> int:
    """The bytes that this rank reads of 4 MiB of which it holds a part."""
    mesh = parallelisms.mesh_of(tuple(range(world)), 1, "tp")
    full = torch.arange(2**20, dtype=torch.float32).reshape(2**10, 2**10)
    dcp.save({"w": distribute_tensor(full, mesh, [Shard(0)])}, checkpoint_id=path)
    target = distribute_tensor(torch.zeros_like(full), mesh, [Shard(0)])
    report = sk.load(path, into={"w": target})
    assert_same(target.full_tensor(), full)
    return report.nbytes_read

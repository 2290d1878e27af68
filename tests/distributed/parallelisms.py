"""How does the same model lie on ranks under each parallelism, and is it all there?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharded_tensor.api import ShardedTensor as TorchShardedTensor
from torch.distributed._shard.sharded_tensor.metadata import (
    ShardedTensorMetadata,
    TensorProperties,
)
from torch.distributed._shard.sharded_tensor.shard import Shard as TorchShard
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from shardkeep import Box, ShardedTensor
from tests.distributed.cases_models import Model, _parallelize, whole_state
from tests.distributed.tensors import assert_holds, assert_same, boxes, sharded

WIDTH, HIDDEN = 5, 7
State = dict[str, Any]
Ranks = tuple[int, ...]


def expected_state() -> State:
    """The full model, the same in every process."""
    return whole_state(WIDTH, HIDDEN)


@cache
def group_of(ranks: Ranks) -> Any:
    """The ranks' process group; None for the whole world. SPMD over the world."""
    return dist.new_group(list(ranks)) if len(ranks) < dist.get_world_size() else None


@cache
def mesh_of(ranks: Ranks, rows: int, *names: str) -> DeviceMesh:
    """A mesh of one or two axes. SPMD over the world."""
    grid = torch.tensor(ranks).reshape(*([rows, -1] if len(names) == 2 else [-1]))
    return DeviceMesh("cpu", grid, mesh_dim_names=names)


def meet(ranks: Ranks) -> None:
    """Make all groups and meshes of these ranks. SPMD over the world, members or not."""
    group_of(ranks)
    mesh_of(ranks, 1, "tp")
    if len(ranks) % 2 == 0:
        mesh_of(ranks, 2, "dp", "tp")


def shard_fully(model: Model, mesh: DeviceMesh) -> None:
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def fsdp(model: Model, ranks: Ranks) -> None:
    shard_fully(model, mesh_of(ranks, 1, "tp"))


def hsdp(model: Model, ranks: Ranks) -> None:
    shard_fully(model, mesh_of(ranks, 2, "dp", "tp"))


def tp(model: Model, ranks: Ranks) -> None:
    _parallelize(model, mesh_of(ranks, 1, "tp"))


def fsdp_tp(model: Model, ranks: Ranks) -> None:
    mesh = mesh_of(ranks, 2, "dp", "tp")
    _parallelize(model, mesh["tp"])
    shard_fully(model, mesh["dp"])


MODULES: dict[str, Callable[[Model, Ranks], None]] = {
    "fsdp": fsdp,
    "hsdp": hsdp,
    "tp": tp,
    "fsdp_tp": fsdp_tp,
}


def module_state(way: str, ranks: Ranks, *, device: str = "cpu") -> State:
    torch.manual_seed(0)
    with torch.device(device):
        model = Model(WIDTH, HIDDEN)
    MODULES[way](model, ranks)
    return model.state_dict()


def pipeline(ranks: Ranks) -> State:
    """Each rank has other keys; some are on two ranks, as tied embeddings are."""
    me, whole = ranks.index(dist.get_rank()), expected_state()
    return {
        key: value
        for number, (key, value) in enumerate(whole.items())
        if me in (number % len(ranks), number // 3 % len(ranks))
    }


def by_hand(ranks: Ranks) -> State:
    """Boxes of uneven size on ranks in falling order, 2-dim ones as an L and its rest."""
    made: State = {}
    for key, full in expected_state().items():
        spec = boxes(*zip(_taking_turns(ranks), _ragged(tuple(full.shape)), strict=False))
        made[key] = sharded(full, spec, group_of(ranks)) if full.ndim else full
    return made


def _taking_turns(ranks: Ranks) -> list[int]:
    return [*reversed(ranks), *ranks]


def _ragged(shape: tuple[int, ...]) -> list[Box]:
    if len(shape) != 2:
        cut = shape[0] // 3 if shape else 0
        return [Box.whole(shape)] if not cut else _halves(shape, cut)
    rows, columns = shape
    return [
        Box((0, 0), (rows, 1)),
        Box((0, 1), (2, columns)),
        Box((2, 1), (rows, columns - 1)),
        Box((2, columns - 1), (rows, columns)),
    ]


def _halves(shape: tuple[int, ...], cut: int) -> list[Box]:
    zeros = (0,) * len(shape)
    return [Box(zeros, (cut, *shape[1:])), Box((cut, *zeros[1:]), shape)]


def by_torch(ranks: Ranks) -> State:
    """PyTorch's own ShardedTensor, rows in uneven chunks, wherever each rank gets one."""
    return {
        key: torch_sharded(full, ranks) if _has_chunk_for_each(full, ranks) else full
        for key, full in expected_state().items()
    }


def _has_chunk_for_each(full: torch.Tensor, ranks: Ranks) -> bool:
    if not full.ndim:
        return False
    step = -(-full.shape[0] // len(ranks))
    return -(-full.shape[0] // step) == len(ranks)


def torch_sharded(full: torch.Tensor, ranks: Ranks) -> TorchShardedTensor:
    step = -(-full.shape[0] // len(ranks))
    metadata = [
        ShardMetadata(
            [start, *[0] * (full.ndim - 1)],
            [min(step, full.shape[0] - start), *full.shape[1:]],
            f"rank:{rank}/cpu",
        )
        for start, rank in zip(range(0, full.shape[0], step), ranks, strict=False)
    ]
    mine = [
        TorchShard(full[rows_of(shard)].clone(), shard)
        for shard in metadata
        if shard.placement is not None and shard.placement.rank() == dist.get_rank()
    ]
    properties = TensorProperties(dtype=full.dtype)
    return TorchShardedTensor._init_from_local_shards_and_global_metadata(
        mine,
        ShardedTensorMetadata(metadata, full.shape, properties),
        process_group=group_of(ranks),
    )


def rows_of(shard: ShardMetadata) -> slice:
    return slice(shard.shard_offsets[0], shard.shard_offsets[0] + shard.shard_sizes[0])


def replicated(ranks: Ranks) -> State:
    return expected_state()


OTHERS: dict[str, Callable[[Ranks], State]] = {
    "pipeline": pipeline,
    "by_hand": by_hand,
    "by_torch": by_torch,
    "replicated": replicated,
}


def ways(size: int) -> list[str]:
    """The parallelisms for this many ranks."""
    return [way for way in (*MODULES, *OTHERS) if size % 2 == 0 or way not in ("hsdp", "fsdp_tp")]


def state_as(way: str, ranks: Ranks) -> State:
    """The model under a parallelism; on members only, after `meet`."""
    return module_state(way, ranks) if way in MODULES else OTHERS[way](ranks)


def spoil(state: State) -> None:
    """Other values everywhere."""
    for leaf in state.values():
        for part in parts(leaf):
            part.detach().view(torch.uint8).bitwise_not_() if part.ndim else part.fill_(99)


def parts(leaf: Any) -> Sequence[torch.Tensor]:
    """The memory of a leaf on this rank."""
    if isinstance(leaf, DTensor):
        return [leaf.to_local()]
    if isinstance(leaf, TorchShardedTensor | ShardedTensor):
        return [shard.tensor for shard in leaf.local_shards()]
    return [leaf]


def assert_state(state: State, truth: State) -> None:
    """Every leaf as in `truth`, a state of the same parallelism that was never saved."""
    assert list(state) == list(truth)
    for key, leaf in state.items():
        assert type(leaf) is type(truth[key]), key
        for part, true in zip(parts(leaf), parts(truth[key]), strict=True):
            assert_same(part.detach(), true.detach())
        if isinstance(leaf, ShardedTensor):
            assert_holds(leaf, expected_state()[key])

"""Which states are saved and loaded in the comparison?"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from benchmarks.state_dicts import Shapes, many_small, transformer

State = dict[str, Any]


def large(quick: bool) -> Shapes:
    """2 GiB of float32 as a transformer has it; 256 MiB if quick."""
    return transformer(layers=5 if quick else 48)


def small(quick: bool) -> Shapes:
    """20,000 tensors of 4 KiB."""
    return many_small(20_000)


def make(shapes: Shapes, dim: int, *, filled: bool) -> State:
    """The state of this rank: plain tensors if it is alone, else shards of `dim` over all ranks.

    Cells are distinct within a tensor and differ between tensors; without `filled` all are zero.
    """
    mesh = init_device_mesh("cpu", (dist.get_world_size(),)) if dist.get_world_size() > 1 else None
    return {
        name: _tensor(shape, number, mesh, dim, filled)
        for number, (name, shape) in enumerate(shapes.items())
    }


def _tensor(
    shape: tuple[int, ...], number: int, mesh: DeviceMesh | None, dim: int, filled: bool
) -> torch.Tensor:
    full = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).add_(number).view(shape)
    if mesh is None:
        return full if filled else full.zero_()
    at = min(dim, len(shape) - 1)
    local = full.chunk(mesh.size(), at)[mesh.get_local_rank()].clone()
    local = local if filled else local.zero_()
    return DTensor.from_local(local, mesh, [Shard(at)], run_check=False)


def locals_of(state: Mapping[str, Any]) -> list[torch.Tensor]:
    """This rank's memory."""
    return [t.to_local() if isinstance(t, DTensor) else t for t in state.values()]


def require_equal(found: State, expected: State, what: str) -> None:
    """Raise unless all cells are equal."""
    for name, one, other in zip(found, locals_of(found), locals_of(expected), strict=True):
        if not torch.equal(one, other):
            raise AssertionError(f"{what}: {name} came back changed")

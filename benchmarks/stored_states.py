"""Which states are saved and loaded in the comparison?"""

from collections.abc import Mapping
from enum import Enum
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from benchmarks.state_dicts import Shapes, many_small, transformer

State = dict[str, Any]
_ODD = -1640531535
_FINITE = 0x3FFFFFFF


class Placing(Enum):
    """How each tensor lies on the ranks; one that is alone holds plain tensors."""

    ROWS = "Shard(0)"
    COLUMNS = "Shard(1)"
    HSDP = "HSDP 2x2"


def large(quick: bool) -> Shapes:
    """2 GiB of float32 as a transformer has it; 128 MiB if quick."""
    return transformer(layers=2 if quick else 48)


def small(quick: bool) -> Shapes:
    """20,000 tensors of 4 KiB; 1,000 if quick."""
    return many_small(1_000 if quick else 20_000)


def nbytes_of(shapes: Shapes) -> int:
    return 4 * sum(torch.Size(shape).numel() for shape in shapes.values())


def make(shapes: Shapes, placing: Placing, *, filled: bool) -> State:
    """The state of this rank. Without `filled` all cells are zero."""
    mesh = None
    if dist.get_world_size() > 1:
        sides = (dist.get_world_size(),)
        if placing is Placing.HSDP:
            sides = (2, dist.get_world_size() // 2)
        mesh = init_device_mesh("cpu", sides)
    return {
        name: _tensor(shape, number, mesh, placing, filled)
        for number, (name, shape) in enumerate(shapes.items())
    }


def _tensor(
    shape: tuple[int, ...], number: int, mesh: DeviceMesh | None, placing: Placing, filled: bool
) -> torch.Tensor:
    if mesh is None:
        return cells(shape, number) if filled else torch.zeros(shape)
    dim = min(int(placing is Placing.COLUMNS), len(shape) - 1)
    parts, part = mesh.size(mesh.ndim - 1), mesh.get_local_rank(mesh.ndim - 1)
    local = cells(shape, number).chunk(parts, dim)[part].clone()
    placements = [*(Replicate() for _ in range(mesh.ndim - 1)), Shard(dim)]
    return DTensor.from_local(local if filled else local.zero_(), mesh, placements, run_check=False)


def cells(shape: tuple[int, ...], number: int) -> torch.Tensor:
    """Neighbours differ, tensors differ, nothing compresses, and all are finite numbers."""
    counted = torch.arange(torch.Size(shape).numel(), dtype=torch.int32).add_(number)
    return counted.mul_(_ODD).bitwise_and_(_FINITE).view(torch.float32).view(shape)


def locals_of(state: Mapping[str, Any]) -> list[torch.Tensor]:
    """This rank's memory."""
    return [t.to_local() if isinstance(t, DTensor) else t for t in state.values()]


def share_of(state: Mapping[str, Any]) -> list[torch.Tensor]:
    """What this rank writes if those that hold the same share the work."""
    first = next(iter(state.values()))
    if not isinstance(first, DTensor) or first.device_mesh.ndim == 1:
        return locals_of(state)
    mesh = first.device_mesh
    return [t.view(-1).chunk(mesh.size(0))[mesh.get_local_rank(0)] for t in locals_of(state)]


def zero(state: Mapping[str, Any]) -> None:
    for tensor in locals_of(state):
        tensor.zero_()


def require_equal(found: State, expected: State, what: str) -> None:
    """Raise unless all cells are equal."""
    for name, one, other in zip(found, locals_of(found), locals_of(expected), strict=True):
        if not torch.equal(one, other):
            raise AssertionError(f"{what}: {name} came back changed")

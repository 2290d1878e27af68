"""Which state dicts are gathered, broadcast and distributed in the comparison?

A transformer's parameters, and very many small tensors; both as FSDP2 shards them: dim 0 over
all ranks.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import _state_dict_utils as torch_state
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from benchmarks.contest import Case
from shardkeep import broadcast_state_dict, distribute_state_dict, gather_state_dict

Shapes = Mapping[str, tuple[int, ...]]
CPU = torch.device("cpu")


def transformer(layers: int = 11, width: int = 1024) -> Shapes:
    """512 MiB of float32 in 102 tensors."""
    inner = 33 * width // 16
    shapes = {"embed.weight": (8 * width, width)}
    for layer in range(layers):
        block = {
            **{f"attention.w{name}.weight": (width, width) for name in "qkvo"},
            "ffn.w1.weight": (inner, width),
            "ffn.w2.weight": (width, inner),
            "ffn.w3.weight": (inner, width),
            "attention_norm.weight": (width,),
            "ffn_norm.weight": (width,),
        }
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in block.items()}
    return shapes | {"norm.weight": (width,), "output.weight": (8 * width, width)}


def many_small(count: int = 2000) -> Shapes:
    """Tensors of 4 KiB."""
    return {f"layers.{number}.scale": (32, 32) for number in range(count)}


def describe(shapes: Shapes) -> str:
    nbytes = 4 * sum(torch.Size(shape).numel() for shape in shapes.values())
    return f"{nbytes / 2**20:.0f} MiB in {len(shapes):,} tensors"


def full_state(shapes: Shapes) -> dict[str, torch.Tensor]:
    """The same on every rank, cells distinct within a tensor."""
    return {name: count_up(number, shape) for number, (name, shape) in enumerate(shapes.items())}


def sharded_state(shapes: Shapes) -> dict[str, DTensor]:
    """The same, every tensor cut along dim 0 over all ranks, which must divide it."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return {
        name: sharded(number, shape, mesh) for number, (name, shape) in enumerate(shapes.items())
    }


def sharded(first: int, shape: tuple[int, ...], mesh: DeviceMesh) -> DTensor:
    local_shape = (shape[0] // mesh.size(), *shape[1:])
    first += mesh.get_local_rank() * torch.Size(local_shape).numel()
    local = count_up(first, local_shape)
    return DTensor.from_local(local, mesh, [Shard(0)], run_check=False)


def count_up(first: int, shape: tuple[int, ...]) -> torch.Tensor:
    numel = torch.Size(shape).numel()
    return torch.arange(first, first + numel, dtype=torch.float32).view(shape)


class StateCase(Case):
    def __init__(self, shapes: Shapes) -> None:
        self.shapes = shapes
        self.size = describe(shapes)

    def tiny(self) -> Case:
        return type(self)({"a": (8, 4), "b": (4,)})


class Gather(StateCase):
    task = "gather to rank 0"

    def prepare(self) -> None:
        self.state = sharded_state(self.shapes)

    def theirs(self) -> dict[str, Any]:
        return torch_state._gather_state_dict(self.state, ranks_only=(0,))

    def ours(self) -> dict[str, Any]:
        return gather_state_dict(self.state, ranks_only=(0,))

    def outcome(self, result: dict[str, Any]) -> Sequence[torch.Tensor]:
        return list(result.values())


class Broadcast(StateCase):
    task = "broadcast into shards"

    def prepare(self) -> None:
        self.full = full_state(self.shapes) if dist.get_rank() == 0 else {}
        self.shards = sharded_state(self.shapes)

    def reset(self) -> None:
        for shard in self.shards.values():
            shard.to_local().zero_()
        self.state: dict[str, Any] = dict(self.shards)

    def theirs(self) -> None:
        torch_state._broadcast_state_dict(self.full, self.state, CPU)

    def ours(self) -> None:
        broadcast_state_dict(self.full, self.state, CPU)

    def outcome(self, result: object) -> Sequence[torch.Tensor]:
        return [shard.to_local() for shard in self.state.values()]


class Distribute(Broadcast):
    task = "distribute into shards"

    def prepare(self) -> None:
        self.full = full_state(self.shapes)
        self.shards = sharded_state(self.shapes)

    def theirs(self) -> None:
        torch_state._distribute_state_dict(self.full, self.state, CPU)

    def ours(self) -> None:
        distribute_state_dict(self.full, self.state, CPU)


def cases(quick: bool) -> list[Case]:
    states = (transformer(2), many_small(500)) if quick else (transformer(), many_small())
    return [kind(shapes) for kind in (Gather, Broadcast, Distribute) for shapes in states]

"""How do a sharded tensor's cells get to other ranks: to one, to all, or to new owners?"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import torch

from shardkeep.boxes import Box
from shardkeep.errors import InvalidError
from shardkeep.layouts import Layout, ListedLayout
from shardkeep.plan import RankMoves, plan_moves, plan_moves_once
from shardkeep.ranks import RankGroup, Shipment, agree, agree_equal, require_equal, ship
from shardkeep.sharded.create import allocate
from shardkeep.sharded.metadata import TensorProperties
from shardkeep.sharded.sharded_tensor import ShardedTensor
from shardkeep.sharded.specs import ShardingSpec, spec_of_layout

# From so many cells on, a plan takes little of the time, and is not kept: it holds two layouts.
_LARGE_NUMEL = 2**18


def identity(tensor: ShardedTensor) -> str:
    """What all ranks must see alike before cells travel: dtype, size and who holds what."""
    outline = tensor.outline()
    return f"{outline.dtype} {list(outline.shape)} in boxes {tensor.sharded_layout.digest}"


def gather(
    tensor: ShardedTensor, dst: int, out: torch.Tensor | None, dtype: torch.dtype | None
) -> torch.Tensor | None:
    """The whole tensor on group rank `dst`, None on the others."""
    group = tensor.rank_group
    received: list[torch.Tensor] = []

    def check() -> dict[str, object]:
        received.extend(_gather_target(tensor, group, dst, out, dtype))
        return {"dst": dst, "tensor": identity(tensor)}

    agree_equal(group, "ShardedTensor.gather", check)
    target = Layout.replicated(tensor.shape, [group.ranks[dst]])
    move(tensor, target, received, "ShardedTensor.gather")
    return received[0] if received else None


def _gather_target(
    tensor: ShardedTensor,
    group: RankGroup,
    dst: int,
    out: torch.Tensor | None,
    dtype: torch.dtype | None,
) -> list[torch.Tensor]:
    """The memory to gather into: one tensor on `dst`, none elsewhere."""
    if not 0 <= dst < group.size:
        raise InvalidError(f"dst={dst} is not a rank of a group of {group.size}")
    if group.my_index != dst:
        if out is not None:
            raise InvalidError(f"only rank {dst} of the group gathers; others must pass out=None")
        return []
    wanted = dtype or tensor.dtype
    if out is None:
        return [torch.empty(tensor.shape, dtype=wanted, device=tensor.device)]
    if out.shape != tensor.shape:
        raise InvalidError(f"out has size {list(out.shape)}, need {list(tensor.shape)}")
    if out.dtype != wanted:
        raise InvalidError(
            f"out has dtype {out.dtype}, the tensor {tensor.dtype}; "
            f"pass dtype={out.dtype} if values are to be converted"
        )
    return [out]


def full_tensor(tensor: ShardedTensor) -> torch.Tensor:
    """The whole tensor on every rank."""
    group = tensor.rank_group
    agree_equal(group, "ShardedTensor.full_tensor", lambda: {"tensor": identity(tensor)})
    full = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    target = Layout.replicated(tensor.shape, group.ranks)
    move(tensor, target, [full], "ShardedTensor.full_tensor")
    return full


def fetch(tensor: ShardedTensor, wanted: Box | Sequence[slice] | None) -> torch.Tensor | None:
    """Each rank's own box; every rank hears of every wish first."""
    group = tensor.rank_group
    what = "ShardedTensor.fetch"
    facts = agree(
        group,
        what,
        lambda: json.dumps([identity(tensor), str(_parse_box(tensor, wanted) or "")]).encode(),
    )
    said: list[tuple[str, str]] = [json.loads(fact) for fact in facts]
    require_equal(group, what, [seen for seen, _ in said])
    wishes = [
        (rank, Box.parse(wish)) for rank, (_, wish) in zip(group.ranks, said, strict=True) if wish
    ]
    target = ListedLayout.of_wishes(tuple(tensor.shape), wishes)
    box = dict(wishes).get(group.me)
    if box is None:
        move(tensor, target, [], "ShardedTensor.fetch", plan=plan_moves_once)
        return None
    found = torch.empty(box.shape, dtype=tensor.dtype, device=tensor.device)
    move(tensor, target, [found], "ShardedTensor.fetch", plan=plan_moves_once)
    return found


def _parse_box(tensor: ShardedTensor, wanted: Box | Sequence[slice] | None) -> Box | None:
    if wanted is None:
        return None
    box = wanted if isinstance(wanted, Box) else _box_of_slices(tensor.shape, wanted)
    if box.ndim != tensor.ndim or not Box.whole(tensor.shape).contains(box):
        raise InvalidError(f"box {box} does not lie inside a tensor of size {list(tensor.shape)}")
    return box


def _box_of_slices(shape: Sequence[int], slices: Sequence[slice]) -> Box:
    if not all(isinstance(piece, slice) for piece in slices):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidError(f"a box is a Box or a sequence of slices, got {slices!r}")
    if len(slices) > len(shape):
        raise InvalidError(f"{len(slices)} slices for a tensor of size {list(shape)}")
    padded = [*slices, *[slice(None)] * (len(shape) - len(slices))]
    spans = [piece.indices(side) for piece, side in zip(padded, shape, strict=True)]
    if any(step != 1 for _, _, step in spans):
        raise InvalidError("a box is made of slices with step 1")
    return Box(tuple(a for a, _, _ in spans), tuple(max(a, b) for a, b, _ in spans))


def reshard(tensor: ShardedTensor, goal: ShardingSpec | Layout) -> ShardedTensor:
    """A new sharded tensor of the same values with the goal's boxes."""
    group, what = tensor.rank_group, "ShardedTensor.reshard"
    size, dtype, device, requires_grad = tensor.outline()
    made: list[ShardedTensor] = []

    def check() -> object:
        spec, home = _as_spec(goal, device), tensor.process_group
        properties = TensorProperties(dtype)
        made.append(allocate(type(tensor), spec, (size,), properties, home, device=device))
        return {"tensor": identity(tensor), "goal": identity(made[0])}

    agree_equal(group, what, check)
    result = made[0]
    buffers = [shard.tensor for shard in result.local_shards()]
    plan = plan_moves if size.numel() < _LARGE_NUMEL else plan_moves_once
    move(tensor, result.sharded_layout, buffers, what, plan=plan, is_dense=True)
    if requires_grad:
        result.requires_grad_()
    return result


def _as_spec(goal: object, device: torch.device) -> ShardingSpec:
    if isinstance(goal, Layout):
        return spec_of_layout(goal, device)
    if not isinstance(goal, ShardingSpec):
        raise InvalidError(f"reshard takes a ShardingSpec or a Layout, got {type(goal).__name__}")
    return goal


def move(
    tensor: ShardedTensor,
    target: Layout,
    buffers: Sequence[torch.Tensor],
    what: str,
    *,
    plan: Callable[[tuple[Layout, ...], Layout, int], RankMoves] = plan_moves,
    is_dense: bool = False,
) -> None:
    """Fill my `buffers` of the target layout from the tensor's shards. SPMD.

    A target that follows the data, and will not come again, is planned by `plan_moves_once`.
    `is_dense` says that every rank's buffers are row-major and of the tensor's dtype.
    """
    group = tensor.rank_group
    moves = plan((tensor.sharded_layout,), target, group.me)
    source = [shard.tensor for shard in tensor.local_shards()]
    dtype = tensor.outline().dtype
    ship(group, [Shipment(moves, dtype, source, buffers, is_dense)], what=what)

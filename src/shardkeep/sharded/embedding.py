"""How is an embedding looked up in a sharded table? Each rank brings the rows it needs to itself.

The rows that this rank's ids name are fetched from their owners, whatever the layout, and torch's
own embedding runs on them. Rows are looked up without gradients.
"""

# torch leaves unique(), tolist() and the like untyped.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F

from shardkeep.boxes import Box
from shardkeep.errors import InvalidError
from shardkeep.layouts import ListedLayout
from shardkeep.plan import plan_moves_once
from shardkeep.ranks import agree
from shardkeep.sharded.sharded_tensor import ShardedTensor


def embedding(
    input: torch.Tensor,
    weight: ShardedTensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> torch.Tensor:
    """The rows of `weight` that `input` names. SPMD; each rank has its own ids."""
    is_plain = not (sparse or scale_grad_by_freq)
    rows, positions = _rows_for(weight, input, "embedding", is_plain)
    if max_norm is not None:
        rows = _renormed(weight, rows, input, max_norm, norm_type)
    return F.embedding(positions, rows)


def embedding_bag(
    input: torch.Tensor,
    weight: ShardedTensor,
    offsets: torch.Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: torch.Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> torch.Tensor:
    """The bags of rows of `weight` that `input` and `offsets` name. SPMD."""
    is_plain = not (sparse or scale_grad_by_freq)
    rows, positions = _rows_for(weight, input, "embedding_bag", is_plain)
    if max_norm is not None:
        rows = _renormed(weight, rows, input, max_norm, norm_type)
    if not rows.shape[0]:
        rows = torch.zeros((1, *rows.shape[1:]), dtype=rows.dtype, device=rows.device)
    return F.embedding_bag(
        positions,
        rows,
        offsets,
        mode=mode,
        per_sample_weights=per_sample_weights,
        include_last_offset=include_last_offset,
        padding_idx=_position_of(padding_idx, weight, input),
    )


def _rows_for(
    weight: ShardedTensor, ids: torch.Tensor, what: str, is_plain: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The distinct rows that `ids` names, in order, and for each id its position among them."""
    from shardkeep.sharded.gathering import move

    group = weight.rank_group
    facts = agree(group, what, lambda: _row_numbers(weight, ids, is_plain))
    wishes: list[tuple[int, Box]] = []
    for rank, fact in zip(group.ranks, facts, strict=True):
        numbers = torch.frombuffer(bytearray(fact), dtype=torch.int64) if fact else torch.empty(0)
        for start, stop in _runs(cast("list[int]", numbers.tolist())):
            wishes.append((rank, Box((start, 0), (stop, weight.shape[1]))))
    unique, positions = torch.unique(ids, return_inverse=True)
    rows = torch.empty((len(unique), weight.shape[1]), dtype=weight.dtype, device=weight.device)
    mine = [box.shape[0] for rank, box in wishes if rank == group.me]
    target = ListedLayout.of_wishes(tuple(weight.shape), wishes)
    move(weight, target, rows.split(mine) if mine else [], what, plan=plan_moves_once)
    return rows, positions


def _row_numbers(weight: ShardedTensor, ids: torch.Tensor, is_plain: bool) -> bytes:
    if not is_plain:
        raise RuntimeError(
            "rows of a ShardedTensor have no gradients, hence no sparse or scale_grad_by_freq"
        )
    if weight.ndim != 2:
        raise InvalidError(f"an embedding table has 2 dims, got {weight.ndim}")
    unique = torch.unique(ids).to("cpu", torch.int64)
    if unique.numel() and not 0 <= int(unique[0]) <= int(unique[-1]) < weight.shape[0]:
        raise InvalidError(
            f"ids run from {int(unique[0])} to {int(unique[-1])}, "
            f"the table has rows 0 to {weight.shape[0] - 1}"
        )
    return unique.numpy().tobytes()


def _runs(numbers: list[int]) -> list[tuple[int, int]]:
    """Ascending numbers as half-open runs of consecutive ones."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number:
            runs[-1] = (runs[-1][0], number + 1)
        else:
            runs.append((number, number + 1))
    return runs


def _renormed(
    weight: ShardedTensor,
    rows: torch.Tensor,
    ids: torch.Tensor,
    max_norm: float,
    norm_type: float,
) -> torch.Tensor:
    """The rows scaled down to `max_norm`, in the table as well: owners hear which ones."""
    norms = torch.linalg.vector_norm(rows, norm_type, dim=1)
    scale = torch.where(norms > max_norm, max_norm / (norms + 1e-7), torch.ones_like(norms))
    unique = torch.unique(ids).to("cpu", torch.int64)
    news = torch.cat([unique.double(), scale.double().cpu()])
    facts = agree(weight.rank_group, "max_norm", lambda: news.numpy().tobytes())
    scales: dict[int, float] = {}
    for fact in facts:
        pair = torch.frombuffer(bytearray(fact), dtype=torch.float64) if fact else torch.empty(0)
        half = len(pair) // 2
        scales.update(zip(map(int, pair[:half].tolist()), pair[half:].tolist(), strict=True))
    for shard in weight.local_shards():
        first = shard.metadata.shard_offsets[0]
        for row, factor in scales.items():
            if factor != 1.0 and first <= row < first + shard.metadata.shard_sizes[0]:
                shard.tensor.detach()[row - first].mul_(factor)
    return rows * scale[:, None].to(rows.dtype)


def _position_of(row: int | None, weight: ShardedTensor, ids: torch.Tensor) -> int | None:
    """Where the padding row is among the fetched ones; None if it is not."""
    if row is None:
        return None
    row %= weight.shape[0]
    found = (torch.unique(ids) == row).nonzero().flatten().tolist()
    return found[0] if found else None


FUNCTIONS: dict[Any, Callable[..., torch.Tensor]] = {
    F.embedding: embedding,
    F.embedding_bag: embedding_bag,
}

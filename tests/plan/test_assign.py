"""Do holders of the same boxes write alike much, and do all know who writes what?"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, strategies as st

from shardkeep.layouts import Layout, Mesh, Replicate, Split
from shardkeep.plan.assign import Tensor, plan_divisions
from shardkeep.plan.divide import Division
from shardkeep.testing.layout_strategies import layouts, shapes


def loads(
    tensors: Mapping[str, Tensor], divisions: Mapping[str, Division], ranks: range
) -> dict[tuple[int, int], int]:
    """Bytes by rank and file."""
    found: dict[tuple[int, int], int] = {}
    for key, division in divisions.items():
        for rank in ranks:
            for chunk in division.chunks_of(rank):
                where = rank, chunk.number
                found[where] = found.get(where, 0) + chunk.box.numel * tensors[key].itemsize
    return found


def balance(by_taker: list[int]) -> float:
    return max(by_taker) * len(by_taker) / sum(by_taker)


@pytest.mark.parametrize("world", [2, 3, 8, 13])
@pytest.mark.parametrize("files", [1, 2, 4])
def test_ranks_and_files_are_balanced(world: int, files: int) -> None:
    """A model of layers alike, with a large embedding and small norms, whole on all ranks."""
    shapes = {"embed": (world * 400, 64)}
    for layer in range(20 * world):
        shapes |= {f"{layer}.w": (64, 64), f"{layer}.norm": (64,)}
    tensors = {
        key: Tensor(Layout.replicated(shape, range(world)), 4) for key, shape in shapes.items()
    }
    found = loads(tensors, plan_divisions(tensors, file_count=files), range(world))
    by_rank = [sum(n for (r, _), n in found.items() if r == rank) for rank in range(world)]
    assert sum(by_rank) == sum(tensor.nbytes for tensor in tensors.values())
    assert balance(by_rank) <= 1.05
    assert len(found) == world * files


def test_replicas_of_shards_are_balanced() -> None:
    """HSDP: each shard is held twice, and each holder writes half."""
    mesh = Mesh((2, 4), tuple(range(8)))
    layout = Layout.on_mesh((64, 8), mesh, (Replicate(), Split(0)))
    tensors = {f"{number}": Tensor(layout, 4) for number in range(100)}
    found = loads(tensors, plan_divisions(tensors, file_count=1), range(8))
    assert balance(list(found.values())) <= 1.05
    assert len(found) == 8


@given(st.data())
def test_a_rank_that_knows_less_decides_the_same(data: st.DataObject) -> None:
    """Ranks plan from the tensors that they have a part in; the chair knows all."""
    count = data.draw(st.integers(1, 3))
    tensors: dict[str, Tensor] = {}
    for number in range(data.draw(st.integers(1, 6))):
        layout = data.draw(layouts(data.draw(shapes(max_dims=2)), range(4)))
        tensors[f"t{number}"] = Tensor(layout, data.draw(st.sampled_from([1, 8])))
    everything = plan_divisions(tensors, file_count=count)
    for rank in range(4):
        known = {key: tensor for key, tensor in tensors.items() if rank in tensor.layout.ranks}
        mine = plan_divisions(known, file_count=count)
        for key, division in mine.items():
            assert division.chunks_of(rank) == everything[key].chunks_of(rank), key


def test_tensors_without_cells_are_left_out() -> None:
    tensors = {"e": Tensor(Layout.replicated((0, 3), range(2)), 4)}
    assert plan_divisions(tensors, file_count=2) == {}

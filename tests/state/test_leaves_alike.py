"""Is what tensors alike share, and is found once for them, right for each of them?"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from shardkeep.errors import ConflictError, InvalidError, LayoutError
from shardkeep.layouts import Layout
from shardkeep.manifest import DictNode, Manifest, TensorNode, TensorRecord
from shardkeep.state.dtypes import DTYPE_NAMES
from shardkeep.state.keeping import keep_state
from shardkeep.state.restoring import fit_state, require_fit
from shardkeep.state.tree import leaves as leaves_of
from tests.state.fake_world import RANK, SIZE, fake_world, numbers


@pytest.fixture(autouse=True)
def world() -> Iterator[None]:
    with fake_world():
        yield


def on_mesh(local: torch.Tensor, *placements: Placement, sides: tuple[int, ...] = (SIZE,)) -> Any:
    mesh = init_device_mesh("cpu", sides)
    return DTensor.from_local(local, mesh, placements, run_check=False)


def state() -> dict[str, Any]:
    """Pairs of tensors alike, and others that differ from them in one thing each."""
    strided = [_StridedShard(0, split_factor=2), Shard(0)]
    return {
        "rows": on_mesh(numbers(2, 8), Shard(0)),
        "rows again": on_mesh(numbers(2, 8, start=100), Shard(0)),
        "columns": on_mesh(numbers(8, 2), Shard(1)),
        "whole": on_mesh(numbers(8, 8), Replicate()),
        "other dtype": on_mesh(numbers(2, 8).to(torch.int32), Shard(0)),
        "other shape": on_mesh(numbers(3, 8), Shard(0)),
        "other mesh": on_mesh(numbers(2, 8), Shard(0), Shard(0), sides=(2, 2)),
        "interleaved": on_mesh(numbers(2, 8), *strided, sides=(2, 2)),
        "plain": numbers(8, 8),
        "plain again": numbers(8, 8, start=7),
        "parameter": torch.nn.Parameter(numbers(8, 8)),
    }


def test_each_tensor_is_kept_with_its_own_layout():
    leaves = state()
    kept = keep_state(leaves)

    assert list(kept.entries) == list(leaves)
    for key, leaf in leaves.items():
        entry, (memory,) = kept.entries[key], kept.memory[key]
        layout = Layout.of(leaf) if isinstance(leaf, DTensor) else None
        assert (entry.dtype, entry.shape) == (DTYPE_NAMES[leaf.dtype], tuple(leaf.shape)), key
        assert entry.layout == layout, key
        local = leaf.to_local() if isinstance(leaf, DTensor) else leaf
        assert isinstance(memory, torch.Tensor)
        assert memory.data_ptr() == local.data_ptr(), key
        assert not memory.requires_grad, key


def test_only_the_same_memory_is_tied():
    rows, mesh = on_mesh(numbers(2, 8), Shard(0)), init_device_mesh("cpu", (SIZE,))
    # Of one row, the second rank holds nothing: no memory is not the same memory.
    nothing = [
        DTensor.from_local(
            torch.empty(0, 3),
            mesh,
            [Shard(0)],
            run_check=False,
            shape=torch.Size((1, 3)),
            stride=(3, 1),
        )
        for _ in range(3)
    ]
    plain = numbers(4)
    leaves = {"a": rows, "b": rows, "c": plain, "d": plain, "e": plain.view(2, 2), "f": plain[:2]}
    kept = keep_state({**leaves, "nothing": nothing, "nothing again": nothing[0]})

    assert isinstance(kept.tree, DictNode)
    numbered = {key: node.index for key, node in kept.tree.items if isinstance(node, TensorNode)}
    assert numbered == {"a": 0, "b": 0, "c": 1, "d": 1, "e": 2, "f": 3, "nothing again": 4}
    assert len(kept.entries) == 4 + 3


@pytest.mark.parametrize(
    ("leaf", "error", "reason"),
    [
        (lambda: on_mesh(numbers(2), Partial()), LayoutError, "'x': placement .* partial sums"),
        (lambda: torch.empty(2, device="meta"), InvalidError, "'x' is on the meta device"),
    ],
)
def test_what_cannot_be_kept_is_named(leaf: Any, error: type[Exception], reason: str):
    with pytest.raises(error, match=reason):
        keep_state({"w": numbers(2), "x": leaf()})


def manifest(leaves: dict[str, Any]) -> Manifest:
    tensors = tuple(
        TensorRecord(key, DTYPE_NAMES[leaf.dtype], tuple(leaf.shape), 0)
        for key, leaf in leaves.items()
    )
    tree = DictNode(tuple((key, TensorNode(at)) for at, key in enumerate(leaves)))
    return Manifest("0" * 16, 1, tree, tensors)


@pytest.mark.parametrize("reverse", [False, True], ids=["as saved", "in another order"])
def test_each_tensor_gets_the_boxes_of_its_own_layout(reverse: bool):
    leaves = state()
    stored = manifest(dict(reversed(leaves.items())) if reverse else leaves)
    fit = fit_state(stored, leaves_of(leaves), me=RANK, keys=None, cast=False)

    require_fit(fit, strict=True)
    assert [path for (path,) in fit.paths] == list(leaves)
    for key, leaf in leaves.items():
        slots = [slot for slot in fit.slots if slot.record.key == key]
        parts = Layout.of(leaf, ranks=[RANK]).parts_of(RANK)
        assert [slot.box for slot in slots] == [part.box for part in parts], key
        local = leaf.to_local() if isinstance(leaf, DTensor) else leaf.detach()
        for slot, part in zip(slots, parts, strict=True):
            wanted = local[part.place.slices()]
            assert slot.memory.data_ptr() == wanted.data_ptr(), key
            assert slot.memory.shape == wanted.shape == torch.Size(part.box.shape), key


def test_tensors_that_do_not_fit_are_named_beside_others_alike():
    leaves = state()
    other = manifest({**leaves, "rows again": numbers(9, 8), "plain again": numbers(8, 8).double()})
    fit = fit_state(other, leaves_of(leaves), me=RANK, keys=None, cast=False)

    with pytest.raises(ConflictError, match=r"'rows again' has shape .*'plain again' is torch"):
        require_fit(fit, strict=True)
    assert len(fit.mismatched) == 2

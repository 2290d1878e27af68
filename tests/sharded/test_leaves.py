"""The memory of a leaf, whatever kind of tensor it is, and the same leaf in other memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._shard import sharded_tensor as torch_sharded
from torch.distributed._shard.sharding_spec import ChunkShardingSpec as TorchChunkShardingSpec
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard as ShardPlacement
from torch.testing._internal.distributed.fake_pg import FakeStore

from shardkeep.errors import InvalidError
from shardkeep.layouts import Layout
from shardkeep.sharded import ShardedTensorBase, leaves
from shardkeep.testing.layout_strategies import distinct_values
from tests.sharded.making import chunks, owners, sharded

pytestmark = [
    pytest.mark.usefixtures("rank_1_of_4"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

LOCAL = distinct_values((2, 3))


@pytest.fixture
def rank_1_of_4() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    yield
    dist.destroy_process_group()


def ours(rows: int = 8) -> Any:
    return sharded(distinct_values((rows, 3)), chunks(range(4)))


def theirs(rows: int = 8) -> Any:
    spec = TorchChunkShardingSpec(0, owners(range(4)))  # type: ignore[arg-type]
    made = torch_sharded.empty(spec, rows, 3)
    made.local_shards()[0].tensor.copy_(LOCAL)
    return made


def base() -> Any:
    tensor = ours()
    return ShardedTensorBase.from_local_shards_and_global_metadata(
        tensor.local_shards(), tensor.metadata()
    )


def on_mesh() -> Any:
    mesh = init_device_mesh("cpu", (4,))
    return DTensor.from_local(LOCAL.clone(), mesh, [ShardPlacement(0)], run_check=False)


KINDS: dict[str, Any] = {"ours": ours, "theirs": theirs, "base": base, "dtensor": on_mesh}


def test_kinds_of_leaves_are_told_apart():
    assert leaves.leaf_kind(LOCAL) == "tensor"
    assert leaves.leaf_kind(nn.Parameter(LOCAL)) == "tensor"
    assert leaves.leaf_kind(ours()) == "sharded"
    assert leaves.leaf_kind(nn.Parameter(ours())) == "sharded"
    assert leaves.leaf_kind(base()) == "sharded"
    assert leaves.leaf_kind(theirs()) == "sharded"
    assert leaves.leaf_kind(on_mesh()) == "dtensor"
    assert leaves.leaf_kind([LOCAL]) is None
    assert leaves.leaf_kind(None) is None


def test_a_plain_leaf_is_its_own_memory():
    weight = nn.Parameter(LOCAL.clone())
    (local,) = leaves.local_tensors(weight)

    assert local.data_ptr() == weight.data_ptr()
    assert not local.requires_grad
    other = torch.zeros(2, 3)
    assert leaves.with_local_tensors(weight, [other]) is other


@pytest.mark.parametrize("kind", KINDS)
def test_local_memory_is_shared_and_detached(kind: str):
    leaf = KINDS[kind]()
    (local,) = leaves.local_tensors(leaf)

    local.fill_(9.0)

    assert not local.requires_grad
    assert leaves.local_tensors(leaf)[0].eq(9.0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_leaf_in_memory_of_another_dtype(kind: str):
    leaf = KINDS[kind]()
    memory = torch.zeros(2, 3, dtype=torch.float64)

    made: Any = leaves.with_local_tensors(leaf, [memory])

    assert type(made) is type(leaf)
    assert made.dtype == torch.float64
    assert made.shape == leaf.shape
    assert leaves.local_tensors(made)[0].data_ptr() == memory.data_ptr()
    assert Layout.of(made) == Layout.of(leaf)
    assert not made.requires_grad
    assert leaf.dtype == torch.float32


@pytest.mark.parametrize("kind", ["ours", "base"])
def test_the_same_leaf_on_another_device(kind: str):
    made: Any = leaves.with_local_tensors(KINDS[kind](), [torch.zeros(2, 3, device="meta")])

    assert made.device == torch.device("meta")
    assert {str(record.placement) for record in made.metadata().shards_metadata} == {
        f"rank:{rank}/meta" for rank in range(4)
    }


@pytest.mark.parametrize("kind", ["ours", "base"])
def test_the_new_leaf_requires_no_grad(kind: str):
    leaf = KINDS[kind]().requires_grad_()

    assert not leaves.with_local_tensors(leaf, [torch.zeros(2, 3)]).requires_grad


def test_a_pytorch_tensor_with_an_empty_chunk_past_the_end_gets_other_memory():
    """5 rows over 4 ranks: PyTorch itself can neither clone nor cast what it made."""
    leaf = theirs(rows=5)

    made: Any = leaves.with_local_tensors(leaf, [torch.ones(2, 3)])

    assert made.metadata().shards_metadata[3].shard_offsets == [5, 0]
    assert leaf.metadata().shards_metadata[3].shard_offsets == [6, 0]
    assert Layout.of(made) == Layout.of(leaf)


@pytest.mark.parametrize("kind", ["ours", "theirs", "base"])
def test_a_tensor_is_needed_for_each_shard(kind: str):
    with pytest.raises(InvalidError, match="this rank has 1 shards, got 2 tensors"):
        leaves.with_local_tensors(KINDS[kind](), [LOCAL, LOCAL])


def test_the_layout_of_a_leaf():
    assert leaves.global_layout(LOCAL, [2, 3]) == Layout.replicated((2, 3), [2, 3])
    assert leaves.global_layout(ours()).boxes_of(1) == Layout.of(on_mesh()).boxes_of(1)

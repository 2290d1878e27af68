import pytest
from torch.distributed.tensor import Partial, Replicate as TorchReplicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from shardkeep.errors import LayoutError
from shardkeep.layouts import Layout, Mesh, Replicate, Split
from shardkeep.layouts.placements import placement_of


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (Shard(0), Split(0)),
        (Shard(-1), Split(-1)),
        (TorchReplicate(), Replicate()),
        (_StridedShard(1, split_factor=3), Split(1, 3)),
        (_StridedShard(0, split_factor=1), Split(0, 1)),
    ],
)
def test_placements_of_a_dtensor_are_read(theirs: object, ours: object):
    assert placement_of(theirs) == ours  # type: ignore[arg-type]


@pytest.mark.parametrize("ours", [Split(1), Split(0, 2), Replicate()])
def test_our_own_placements_stay(ours: Split | Replicate):
    assert placement_of(ours) is ours


@pytest.mark.parametrize("partial", [Partial(), Partial("avg"), Partial("max")])
def test_partial_is_refused_with_the_way_out(partial: Partial):
    with pytest.raises(LayoutError, match=r"partial sums.*reduce them first: tensor\.redistribute"):
        Layout.on_mesh((4,), Mesh.line([0, 1]), [partial])


@pytest.mark.parametrize("nonsense", ["S(0)", 0, None])
def test_what_is_no_placement_is_refused(nonsense: object):
    with pytest.raises(LayoutError, match=r"unknown placement .*use Shard\(dim\) or Replicate"):
        placement_of(nonsense)  # type: ignore[arg-type]


def test_placements_print_briefly():
    assert [str(each) for each in (Split(0), Split(1, 2), Replicate())] == ["S(0)", "S(1, /2)", "R"]

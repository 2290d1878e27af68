"""What a sharded tensor tells of itself."""

from __future__ import annotations

import pytest
import torch

from shardkeep import sharded as sk
from shardkeep.boxes import Box
from shardkeep.errors import UnsupportedError
from shardkeep.layouts import Layout
from shardkeep.sharded import ShardedTensorBase, draw_layout
from shardkeep.testing.layout_strategies import distinct_values
from shardkeep.testing.thread_ranks import ThreadRanks
from tests.sharded.making import chunks, listed, pieces, sharded

FULL = distinct_values((4, 3))
ALONE = sharded(FULL, chunks([0, 0]))


def test_size_dtype_and_device_are_those_of_the_whole():
    assert ALONE.shape == ALONE.size() == (4, 3)
    assert ALONE.size(1) == 3
    assert (ALONE.dim(), ALONE.ndim) == (2, 2)
    assert (ALONE.numel(), ALONE.nelement()) == (12, 12)
    assert ALONE.stride() == (3, 1)
    assert (ALONE.nbytes, ALONE.itemsize, ALONE.element_size()) == (48, 4, 4)
    assert ALONE.dtype == torch.float32
    assert ALONE.device == torch.device("cpu")
    assert ALONE.layout == torch.strided
    assert len(ALONE) == 4


def test_properties_that_torch_code_asks_for():
    assert ALONE.is_floating_point()
    assert not ALONE.is_complex()
    assert not ALONE.is_cuda
    assert not ALONE.is_meta
    assert not ALONE.is_sparse
    assert not ALONE.is_pinned()
    assert ALONE.is_leaf
    assert ALONE.grad is None
    assert ALONE.grad_fn is None
    assert ALONE.is_contiguous()
    assert ALONE.contiguous() is ALONE


def test_a_rank_without_shards_tells_the_same(three: ThreadRanks):
    def act(rank, group):
        tensor = sharded(FULL.double(), chunks([0, 2]), group)
        return (
            tensor.shape,
            tensor.stride(),
            tensor.nbytes,
            tensor.dtype,
            tensor.device,
            tensor.is_meta,
            tensor.is_pinned(),
            tensor.metadata(),
            tensor.sharding_spec(),
            tensor.sharded_layout,
        )

    facts = three.run(act)

    assert facts[0] == facts[1] == facts[2]
    assert facts[1][:4] == ((4, 3), (3, 1), 96, torch.float64)


def test_local_tensor_is_the_only_shard(three: ThreadRanks):
    def act(rank, group):
        tensor = sharded(FULL, chunks([0, 2, 2]), group)
        try:
            return tensor.local_tensor() is pieces(tensor)[0]
        except UnsupportedError as error:
            return str(error)

    assert three.run(act) == [
        True,
        "local_tensor() needs exactly one local shard, this rank has 0; use local_shards()",
        "local_tensor() needs exactly one local shard, this rank has 2; use local_shards()",
    ]


def test_a_spec_that_was_not_given_is_inferred():
    assert sharded(FULL, chunks([0, 0])).sharding_spec() == chunks([0, 0])
    one = listed([(0, Box.whole((4, 3)))])
    assert sharded(FULL, one).sharding_spec() == one


def test_the_layout_names_the_boxes_of_all_ranks(three: ThreadRanks):
    layouts = three.run(lambda _, group: sharded(FULL, chunks([2, 1, 2]), group).sharded_layout)

    assert layouts[0].describe().splitlines() == ["rank 1: [2:4, 0:3]", "rank 2: [0:2, 0:3]"]
    assert len(set(layouts)) == 1


def test_tensors_are_keys_by_identity():
    other = sharded(FULL, chunks([0, 0]))

    assert hash(ALONE) != hash(other)
    assert {ALONE: 1}[ALONE] == 1


def test_printing_shows_who_holds_what():
    assert repr(ALONE) == (
        "ShardedTensor(size=[4, 3], dtype=torch.float32, "
        "shards=[[0:2, 0:3] on rank:0/cpu; [2:4, 0:3] on rank:0/cpu], 2 local)"
    )
    assert str(ALONE) == repr(ALONE)


def test_printing_cuts_long_lists_and_needs_no_other_rank(three: ThreadRanks):
    def act(rank, group):
        spec = chunks(i % 2 for i in range(9))
        return repr(sk.zeros(spec, 9, dtype=torch.int8, process_group=group))

    found = three.run(act)

    assert found[2].endswith("[5:6] on rank:1/cpu; ... 3 more], 0 local)")
    assert "dtype=torch.int8" in found[0]


def test_printing_tells_of_grad():
    assert ", requires_grad=True, " in repr(sk.zeros(chunks([0]), 2, requires_grad=True))


def test_a_layout_is_drawn_as_a_map_of_ranks():
    assert draw_layout(Layout.grid((4, 6), (2, 2))).splitlines() == [
        "000111",
        "000111",
        "222333",
        "222333",
    ]


def test_replicas_and_gaps_have_marks_of_their_own():
    layout = Layout.listed(
        (1, 4), [(0, Box((0, 0), (1, 1))), (1, Box((0, 0), (1, 1))), (37, Box((0, 2), (1, 3)))]
    )

    assert draw_layout(layout) == "+.B."


def test_drawings_of_large_layouts_are_scaled_down():
    picture = draw_layout(Layout.chunked((1000, 1000), 0, range(4)), max_rows=4, max_columns=3)

    assert picture.splitlines() == ["000", "111", "222", "333"]


def test_drawings_have_two_dims_whatever_the_tensor_has():
    assert draw_layout(Layout.chunked((3,), 0, [2, 1, 0])) == "210"
    assert draw_layout(Layout.replicated((), [5])) == "5"
    assert draw_layout(Layout.chunked((2, 2, 9), 1, [0, 1])).splitlines() == ["01", "01"]
    assert draw_layout(Layout.replicated((0, 4), [0])) == ""


UNSUPPORTED = {
    "matmul": lambda t: t @ t.clone(),
    "index": lambda t: t[0],
    "assign": lambda t: t.__setitem__(0, 1.0),
    "view": lambda t: t.view(12),
    "reshape": lambda t: t.reshape(12),
    "transpose": lambda t: t.T,
    "softmax": lambda t: t.softmax(0),
    "item": lambda t: sharded(torch.tensor([3.0]), chunks([0])).item(),
    "truth": lambda t: bool(sharded(torch.tensor([3.0]), chunks([0]))),
    "iterate": lambda t: list(t),
    "cat": lambda t: torch.cat([t, t]),
    "cumsum": lambda t: t.cumsum(0),
    "sort": lambda t: t.sort(),
    "unsqueeze": lambda t: t.unsqueeze(0),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_a_shard_alone_cannot_answer_is_refused_with_the_way_out(name: str):
    with pytest.raises(
        UnsupportedError, match=r"not supported for ShardedTensor; use local_shards\(\)"
    ):
        UNSUPPORTED[name](ALONE)


@pytest.mark.parametrize("convert", [lambda t: t.numpy(), lambda t: t.tolist()])
def test_values_of_the_whole_are_not_handed_out_by_one_rank(convert):
    with pytest.raises(RuntimeError, match="not supported for tensor subclasses"):
        convert(ALONE)


BASE = ShardedTensorBase.from_local_shards_and_global_metadata(
    ALONE.local_shards(), ALONE.metadata()
)


@pytest.mark.parametrize(
    "act", [lambda t: t + 1, torch.clone, torch.detach, torch.zeros_like, lambda t: t.uniform_()]
)
def test_a_base_only_keeps_shards(act):
    with pytest.raises(UnsupportedError, match="a ShardedTensorBase only keeps shards; compute"):
        act(BASE)


def test_a_base_prints():
    assert repr(BASE).startswith("ShardedTensorBase(size=[4, 3], ")

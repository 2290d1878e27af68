"""Does a diff find every difference, name it, and leave both sides alone?"""

import io
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch.distributed.tensor import Shard

from shardkeep.state.diff import Change, check_state_dict_similarity, diff_state_dict
from tests.state.fake_world import dtensor, numbers, sharded, shardless, torch_chunks
from tests.state.tensors import DTYPES, awkward_tensors, bits
from tests.state.trees import Pair, plain_leaves, trees

# PyTorch warns at every use of its own ShardedTensor.
pytestmark = pytest.mark.filterwarnings("ignore:Please use DTensor:FutureWarning")

NAN, INF = float("nan"), float("inf")


def only_change(a: Any, b: Any, **options: Any) -> Change:
    """The single difference, after making sure that the other direction has it too."""
    diff = diff_state_dict({"x": a}, {"x": b}, **options)
    assert diff
    assert (diff.only_in_a, diff.only_in_b) == ((), ())
    (change,) = diff.changed
    assert change.key == "x"
    (back,) = diff_state_dict({"x": b}, {"x": a}, **options).changed
    assert (back.a, back.b, back.max_abs) == (change.b, change.a, change.max_abs)
    return change


@given(trees)
def test_a_tree_does_not_differ_from_itself(tree):
    assert not diff_state_dict(tree, tree)


@given(trees, trees)
def test_leaves_of_one_tree_alone_are_all_named(a, b):
    diff = diff_state_dict({"x": a}, {"y": b})
    for found, tree in ((diff.only_in_a, a), (diff.only_in_b, b)):
        assert len(set(found)) == len(found) >= len(plain_leaves(tree))
    assert not diff.changed


def test_keys_that_one_has_alone_are_named():
    diff = diff_state_dict({"a": {"x": 1, "y": [2, 3]}, "b": 4}, {"a": {"y": [2]}, "c": {"d": 5}})
    assert diff.only_in_a == ("a.x", "a.y.1", "b")
    assert diff.only_in_b == ("c.d",)
    assert not diff.changed


def test_an_empty_container_that_one_has_alone_is_named():
    diff = diff_state_dict({"a": {}, "b": [[]]}, {})
    assert diff.only_in_a == ("a", "b.0")


def test_keys_that_look_the_same_are_told_apart():
    diff = diff_state_dict({"a.b": 1}, {"a": {"b": 1}})
    assert diff.only_in_a == ('"a.b"',)
    assert diff.only_in_b == ("a.b",)


@pytest.mark.parametrize(
    ("a", "b", "a_type", "b_type"),
    [
        ([1], (1,), "list", "tuple"),
        ((1, 2), Pair(1, 2), "tuple", "Pair"),
        ({}, [], "dict", "list"),
        (1, 1.0, "int", "float"),
        (True, 1, "bool", "int"),
        (None, torch.ones(1), "NoneType", "tensor"),
        ((), 0, "tuple", "int"),
    ],
)
def test_types_differ(a, b, a_type, b_type):
    change = only_change(a, b)
    assert (change.what, change.a, change.b) == ("type", a_type, b_type)


def test_a_leaf_opposite_a_container_differs_in_type_and_keys():
    diff = diff_state_dict({"x": 1}, {"x": {"y": 2}})
    assert [(change.key, change.what) for change in diff.changed] == [("x", "type")]
    assert diff.only_in_b == ("x.y",)


def test_the_root_has_a_type_too():
    (change,) = diff_state_dict([1], (1,)).changed
    assert (change.key, change.what) == ("", "type")


def test_mappings_are_alike_in_any_order():
    assert not diff_state_dict({"a": 1, "b": 2}, OrderedDict(b=2, a=1))


def test_shape_and_dtype_are_both_reported():
    diff = diff_state_dict({"x": torch.ones(2)}, {"x": torch.ones(2, 1, dtype=torch.int32)})
    assert [(c.what, c.a, c.b) for c in diff.changed] == [
        ("shape", "(2,)", "(2, 1)"),
        ("dtype", "torch.float32", "torch.int32"),
    ]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_changed_element_is_counted_and_measured(dtype):
    a = torch.tensor([[1, 0, 1], [1, 1, 1]]).to(dtype)
    b = torch.tensor([[1, 1, 1], [1, 1, 0]]).to(dtype)
    change = only_change(a, b)
    assert (change.what, change.differing, change.numel, change.max_abs) == ("value", 2, 6, 1)


@pytest.mark.parametrize(
    ("a", "b", "max_abs"),
    [
        ([1.0, NAN], [1.5, NAN], 0.5),
        ([1.0, NAN], [1.0, 2.0], INF),
        ([1.0, INF], [1.0, -INF], INF),
        ([1.0, INF], [3.0, INF], 2),
        ([3e38], [-3e38], 2 * float(np.float32(3e38))),
    ],
)
def test_nan_and_infinity(a, b, max_abs):
    change = only_change(torch.tensor(a), torch.tensor(b))
    assert (change.differing, change.max_abs) == (1, max_abs)


def test_zeros_of_either_sign_are_equal():
    assert not diff_state_dict([torch.tensor([0.0, NAN]), 0.0], [torch.tensor([-0.0, NAN]), -0.0])


def test_complex_numbers_are_compared_part_by_part():
    a, b = complex(NAN, 1), complex(NAN, 2)
    assert only_change(a, b).max_abs == INF
    assert only_change(torch.tensor([a]), torch.tensor([b])).differing == 1
    assert only_change(3 + 4j, 0j).max_abs == 5
    assert not diff_state_dict([a, torch.tensor(a)], [a, torch.tensor(a)])


def test_differences_of_integers_are_exact():
    low, high = -(2**63), 2**63 - 1
    assert only_change(torch.tensor([low]), torch.tensor([high])).max_abs == 2**64 - 1
    assert only_change(torch.tensor([2**60]), torch.tensor([2**60 + 1])).max_abs == 1
    assert only_change(10**400, 10**400 + 3).max_abs == 3


@given(
    st.lists(st.tuples(st.floats(width=32), st.floats(width=32)), min_size=1, max_size=8),
    st.sampled_from((torch.float32, torch.bfloat16, torch.float16)),
)
def test_tensors_differ_as_their_numbers_do(pairs, dtype):
    a, b = (torch.tensor(side, dtype=torch.float32).to(dtype) for side in zip(*pairs, strict=True))
    numbers = list(zip(a.tolist(), b.tolist(), strict=True))
    different = [(x, y) for x, y in numbers if x != y and not (x != x and y != y)]
    diff = diff_state_dict([a], [b])
    assert bool(diff) == bool(different)
    if different:
        distances = [abs(x - y) for x, y in different]
        (change,) = diff.changed
        assert change.differing == len(different)
        assert change.max_abs == max(INF if x != x else x for x in distances)


def test_large_tensors_are_compared_to_the_end():
    a = torch.arange(2_500_000, dtype=torch.int32)
    b = a.clone()
    b[[0, 1_048_576, 2_499_999]] += torch.tensor([1, 7, 2], dtype=torch.int32)
    change = only_change(a, b)
    assert (change.differing, change.max_abs) == (3, 7)


def test_strides_and_gradients_do_not_matter():
    a = numbers(2, 3)
    b = torch.nn.Parameter(a.t().contiguous().t())
    assert not diff_state_dict({"x": a}, {"x": b})


def test_sparse_tensors_are_compared_as_dense_ones():
    assert only_change(torch.eye(3).to_sparse(), 2 * torch.eye(3).to_sparse()).differing == 3


def test_a_meta_tensor_differs_from_one_with_values():
    meta = torch.empty(2, device="meta")
    assert not diff_state_dict([meta], [meta.clone()])
    assert only_change(meta, torch.ones(2)).text == (
        "torch.float32 (2,) on meta -> torch.float32 (2,) on cpu"
    )


class NeverEqual:
    def __eq__(self, other: object) -> bool:
        raise TypeError("no")

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("a", "b", "max_abs"),
    [
        ("x", "y", None),
        (b"x", b"y", None),
        (torch.float32, torch.int8, None),
        (torch.Size([2]), torch.Size([3]), None),
        (1.5, -1.0, 2.5),
        (True, False, 1),
        (np.float32(1), np.float32(3), 2),
        (np.arange(3), np.array([0, 1, 6]), 4),
        (np.arange(3), np.arange(4), None),
        (np.arange(3), np.arange(3.0), None),
        (np.array(["a"]), np.array(["b"]), None),
        (io.BytesIO(b"x"), io.BytesIO(b"y"), None),
        ({1}, {2}, None),
        (NeverEqual(), NeverEqual(), None),
    ],
    ids=lambda value: str(value).partition(" object at ")[0],
)
def test_values_differ(a, b, max_abs):
    change = only_change(a, b)
    assert (change.what, change.max_abs) == ("value", max_abs)
    assert not diff_state_dict([a], [a])


def test_equal_values_in_other_objects_do_not_differ():
    a = [float("nan"), np.array([NAN, 1]), np.array(["x"]), io.BytesIO(b"x"), {1}, 10**30]
    b = [float("nan"), np.array([NAN, 1]), np.array(["x"]), io.BytesIO(b"x"), {1}, 10**30]
    assert not diff_state_dict(a, b)


def test_without_values_contents_do_not_matter():
    a = {"t": torch.zeros(2), "n": 1, "s": "a"}
    b = {"t": torch.ones(2), "n": 2, "s": "b"}
    assert not diff_state_dict(a, b, values=False)
    assert diff_state_dict(a, b | {"n": 1.0}, values=False).changed[0].what == "type"


def test_nothing_is_written():
    a, b = awkward_tensors(), awkward_tensors()
    before = {name: bits(tensor).clone() for name, tensor in b.items()}
    a["0-dim"].zero_()
    assert diff_state_dict(a, b)
    assert not check_state_dict_similarity(a, {"x": 1})
    assert check_state_dict_similarity(a, b)
    for name, tensor in b.items():
        assert torch.equal(bits(tensor), before[name])


@pytest.mark.usefixtures("rank_one_of_four")
@pytest.mark.parametrize("make", [dtensor, sharded, torch_chunks])
def test_what_this_rank_holds_is_compared(make):
    a, b = make(numbers(2, 3)), make(numbers(2, 3) + torch.tensor([0, 0, 0.25]))
    change = only_change(a, b)
    assert (change.differing, change.numel, change.max_abs) == (2, 6, 0.25)
    assert not diff_state_dict([a], [make(numbers(2, 3))])


@pytest.mark.usefixtures("rank_one_of_four")
def test_kinds_and_layouts_differ():
    assert only_change(dtensor(numbers(2)), numbers(8)).text == "DTensor -> tensor"
    assert only_change(sharded(numbers(2)), shardless(8)).what == "layout"
    rows, columns = dtensor(numbers(2, 4)), dtensor(numbers(8, 1), Shard(1))
    assert only_change(rows, columns).what == "layout"


def test_a_diff_prints_as_a_table_sorted_by_change():
    a = {"w": numbers(2, 2), "step": 1, "lr": 0.5, "old": 0, "betas": (1, 2), "s": numbers(2)}
    b = {"w": numbers(2, 2) * 3, "step": 2, "lr": 0.25, "betas": [1, 2], "s": numbers(3)}
    assert str(diff_state_dict(a, b | {"new": [0]})).splitlines() == [
        "only in a  old",
        "only in b  new.0",
        "type       betas  tuple -> list",
        "shape      s      (2,) -> (3,)",
        "value      w      3 of 4 elements differ, by at most 6",
        "value      step   1 -> 2",
        "value      lr     0.5 -> 0.25",
    ]


def test_no_differences_print_as_such():
    assert str(diff_state_dict({"a": 1}, {"a": 1})) == "no differences"
    assert str(diff_state_dict([], 1)) == "type       (root)  list -> int"


def test_a_long_table_is_cut():
    lines = str(diff_state_dict([0] * 500, [])).splitlines()
    assert len(lines) == 101
    assert lines[-1] == "... and 400 more"


SIMILAR = [
    ({"a": torch.zeros(2), "n": 1}, {"a": torch.ones(2), "n": "x"}),
    ([torch.nn.Parameter(torch.zeros(2))], (torch.ones(2),)),
    (OrderedDict(a=[], b={}), {"b": {}, "a": []}),
]
NOT_SIMILAR = [
    ({"a": 1}, {"b": 1}),
    ({"a": 1}, {"a": 1, "b": 1}),
    ([1], [1, 2]),
    ([torch.zeros(2)], [torch.zeros(1)]),
    ([torch.zeros(2)], [torch.zeros(2).double()]),
    ([torch.zeros(2)], [1]),
    ([1], [torch.zeros(2)]),
    ([torch.zeros(2)], [None]),
    ([None], [torch.zeros(2)]),
    ({"a": {}}, {"a": 1}),
    (1, {}),
]


@pytest.mark.parametrize(("a", "b"), SIMILAR, ids=range(len(SIMILAR)))
def test_similar_state_dicts_have_the_same_tensors_in_the_same_places(a, b):
    assert check_state_dict_similarity(a, b)
    assert check_state_dict_similarity(b, a)


@pytest.mark.parametrize(("a", "b"), NOT_SIMILAR, ids=range(len(NOT_SIMILAR)))
def test_state_dicts_that_are_not_similar(a, b):
    assert not check_state_dict_similarity(a, b)
    assert not check_state_dict_similarity(b, a)


@pytest.mark.usefixtures("rank_one_of_four")
def test_similarity_covers_all_kinds_of_tensor():
    assert check_state_dict_similarity([dtensor(numbers(2))], [dtensor(torch.zeros(2))])
    assert check_state_dict_similarity([sharded(numbers(2))], [sharded(torch.zeros(2))])
    assert not check_state_dict_similarity([dtensor(numbers(2))], [sharded(numbers(2))])
    assert not check_state_dict_similarity([dtensor(numbers(2))], [dtensor(numbers(3))])
    assert not check_state_dict_similarity([sharded(numbers(2))], [sharded(numbers(2).int())])
    assert not check_state_dict_similarity([sharded(numbers(2))], [shardless(8)])

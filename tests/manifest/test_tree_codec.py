"""The structure of a state comes back from JSON; nothing else passes for one."""

import msgspec
import pytest
from hypothesis import given, strategies as st

from shardkeep.errors import CorruptError, InvalidError
from shardkeep.manifest import (
    ArrayNode,
    DictNode,
    ListNode,
    Node,
    PerRankNode,
    SparseNode,
    TensorNode,
    TupleNode,
    ValueNode,
    decode_tree,
    encode_tree,
)
from tests.manifest.examples import any_json, trees

COO = {
    "layout": "sparse_coo",
    "shape": [2, 3],
    "coalesced": True,
    "parts": {"indices": 0, "values": 1},
}


@given(trees(3, ("a", "b")))
def test_a_tree_comes_back(tree: Node):
    data = encode_tree(tree, tensor_count=3, per_rank=("a", "b"))
    read = msgspec.json.decode(msgspec.json.encode(data))

    assert decode_tree(read, tensor_count=3, per_rank=("a", "b")) == tree


def test_every_kind_of_node_is_written_as_the_format_page_says():
    tree = DictNode(
        (
            ("a", TensorNode(0)),
            (1, DictNode((), ordered=True)),
            ("b", ListNode((ArrayNode(1), TupleNode(())))),
            ("c", PerRankNode("rng")),
            ("d", ValueNode.of(float("nan"))),
        )
    )
    assert encode_tree(tree, tensor_count=2, per_rank=("rng",)) == {
        "dict": [
            ["a", 0],
            [1, {"odict": []}],
            ["b", {"list": [{"array": 1}, {"tuple": []}]}],
            ["c", {"per_rank": "rng"}],
            ["d", {"value": {"float": "nan"}}],
        ]
    }


def test_a_sparse_tensor_is_written_by_its_parts():
    parts = (("indices", TensorNode(0)), ("values", TensorNode(1)))
    node = SparseNode("sparse_coo", (2, 3), True, parts)

    assert encode_tree(node, tensor_count=2) == {"sparse": COO}


def test_a_value_is_told_from_its_like():
    assert ValueNode.of(1) != ValueNode.of(True)
    assert ValueNode.of(1) != ValueNode.of(1.0)
    assert ValueNode.of(0.0) != ValueNode.of(-0.0)
    assert ValueNode.of(float("nan")) == ValueNode.of(float("nan"))
    assert hash(ValueNode.of(b"a")) == hash(ValueNode.of(b"a"))
    assert ValueNode.of(2**70).value == 2**70
    assert ValueNode(1) != 1


def test_a_value_of_a_type_that_is_not_known_here_is_kept():
    data = {"value": {"elsewhere.type": {"a": [1]}}}

    node = decode_tree(data, tensor_count=0)
    assert encode_tree(node, tensor_count=0) == data
    assert isinstance(node, ValueNode)
    with pytest.raises(InvalidError, match="are not known here"):
        node.value  # noqa: B018


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (None, "found a NoneType"),
        ("w", "found a str"),
        (True, "found a bool"),
        (0.0, "found a float"),
        ([0], "found a list"),
        ({}, "found a dict"),
        ({"list": [], "tuple": []}, "found a dict"),
        ({"set": []}, "unknown kind of node 'set'"),
        (2, "2 is not one of 2 tensors"),
        (-1, "-1 is not one of 2 tensors"),
        pytest.param(10**5000, "an int of 16610 bits is not one of", id="huge"),
        ({"array": 2}, "2 is not one of 2 tensors"),
        ({"array": True}, "True is not one of"),
        ({"array": "0"}, "'0' is not one of"),
        ({"list": 0}, "expected a list, found 0"),
        ({"tuple": {"a": 0}}, "expected a list, found a dict of 1"),
        ({"dict": {"a": 0}}, "expected a list"),
        ({"dict": ["ab"]}, "an item of a dict is not"),
        ({"dict": [["a"]]}, "an item of a dict is not"),
        ({"dict": [["a", 0, 1]]}, "an item of a dict is not"),
        ({"dict": [["a", 0], ["a", 1]]}, "the same key twice"),
        ({"odict": [[1, 0], [1, 1]]}, "the same key twice"),
        ({"dict": [[None, 0]]}, "key None is neither"),
        ({"dict": [[True, 0]]}, "key True is neither"),
        ({"dict": [[1.5, 0]]}, "key 1.5 is neither"),
        ({"dict": [[2**53, 0]]}, "neither a string nor an integer below"),
        ({"dict": [[[], 0]]}, "key a list of 0 is neither"),
        ({"per_rank": "other"}, "'other' is not listed in per_rank"),
        ({"per_rank": 0}, "0 is not listed in per_rank"),
        ({"per_rank": []}, "a list of 0 is not listed in per_rank"),
        ({"value": [1]}, "a value is no list"),
        ({"value": {"int": "x"}}, "not the digits of an int"),
        ({"value": {"int": "1", "b": 2}}, "a value has one type"),
        ({"value": {"pickle": "x"}}, "unknown type of value 'pickle'"),
        ({"value": {"a.b": [2**60]}}, "an integer beyond"),
        ({"sparse": []}, "has layout, shape, coalesced, parts"),
        ({"sparse": dict(reversed(COO.items()))}, "has layout, shape, coalesced, parts"),
        ({"sparse": COO | {"more": 1}}, "has layout, shape, coalesced, parts"),
        ({"sparse": COO | {"coalesced": 1}}, "wrong type"),
        ({"sparse": COO | {"layout": ["sparse_coo"]}}, "wrong type"),
        ({"sparse": COO | {"layout": "strided"}}, "a 'strided' tensor of 2 parts"),
        ({"sparse": COO | {"parts": {"values": 1, "indices": 0}}}, "of 2 parts, not its own"),
        (
            {"sparse": COO | {"parts": {"indices": 0, "values": {"array": 1}}}},
            "part .* is no tensor",
        ),
        ({"sparse": COO | {"parts": {"indices": 0, "values": 2}}}, "2 is not one of 2 tensors"),
        ({"sparse": COO | {"shape": [-1]}}, "not from 0 to"),
        ({"sparse": COO | {"shape": ["a"]}}, "not from 0 to"),
        ({"sparse": COO | {"shape": [2**62, 4]}}, "takes more than"),
        (
            {
                "sparse": {
                    "layout": "sparse_csr",
                    "shape": [2, 2],
                    "coalesced": True,
                    "parts": {"crow_indices": 0, "col_indices": 1, "values": 0},
                }
            },
            "a sparse_csr tensor cannot be coalesced",
        ),
    ],
)
def test_what_no_writer_writes_is_rejected(data: object, reason: str):
    with pytest.raises((CorruptError, InvalidError), match=reason):
        decode_tree(data, tensor_count=2, per_rank=("rng",))


node_json = st.recursive(
    st.integers(-1, 3) | any_json,
    lambda children: st.dictionaries(
        st.sampled_from(["dict", "odict", "list", "tuple", "array", "value", "per_rank", "sparse"]),
        children
        | st.lists(children, max_size=2)
        | st.lists(st.tuples(st.sampled_from(["a", 1]), children).map(list), max_size=2),
        min_size=1,
        max_size=2,
    ),
    max_leaves=8,
)


@given(node_json)
def test_any_json_is_a_tree_or_is_rejected(data):
    try:
        tree = decode_tree(data, tensor_count=2, per_rank=("a",))
    except (CorruptError, InvalidError):
        return
    assert encode_tree(tree, tensor_count=2, per_rank=("a",)) == data


@pytest.mark.parametrize(
    ("tree", "reason"),
    [
        (TensorNode(2), "2 is not one of 2 tensors"),
        (TensorNode(True), "True is not one of 2 tensors"),
        (ArrayNode(-1), "-1 is not one of 2 tensors"),
        (PerRankNode("x"), "'x' is not listed in per_rank"),
        (DictNode((("a", TensorNode(0)), ("a", TensorNode(1)))), "the same key twice"),
        (DictNode(((True, TensorNode(0)),)), "key True is neither"),
        (ValueNode([1]), "tree: a value is no list"),
        (SparseNode("sparse_csr", (1,), False, ()), "a 'sparse_csr' tensor of 0 parts"),
    ],
)
def test_what_a_reader_would_reject_is_not_written(tree: Node, reason: str):
    with pytest.raises(InvalidError, match=reason):
        encode_tree(tree, tensor_count=2)


def nested(levels: int) -> Node:
    node: Node = TensorNode(0)
    for _ in range(levels):
        node = ListNode((node,))
    return node


def test_a_tree_may_be_200_levels_deep_and_no_deeper():
    data = encode_tree(nested(200), tensor_count=1)

    assert decode_tree(data, tensor_count=1) == nested(200)
    with pytest.raises(InvalidError, match="nested deeper than 200 levels"):
        encode_tree(nested(201), tensor_count=1)
    with pytest.raises(InvalidError, match="nested deeper than 200 levels"):
        decode_tree({"list": [data]}, tensor_count=1)
